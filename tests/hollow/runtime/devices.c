/* Start, errors, devices. */
#include "runtime.h"

__thread cudaError_t last = cudaSuccess;

/* The codes of the two interfaces are the same numbers. */
cudaError_t done(CUresult result)
{
    if (result != CUDA_SUCCESS)
        last = (cudaError_t)result;
    return (cudaError_t)result;
}

static CUresult begun;
static void begin(void) { begun = cuInit(0); }

CUresult start(void)  /* the first call of a thread makes a context current: that of device 0 */
{
    CUcontext ctx = NULL;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    if (begun != CUDA_SUCCESS)
        return begun;
    cuCtxGetCurrent(&ctx);
    if (ctx)
        return CUDA_SUCCESS;
    CUresult result = cuDevicePrimaryCtxRetain(&ctx, 0);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(ctx) : result;
}

RT cudaGetLastError(void)
{
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

RT cudaPeekAtLastError(void) { return last; }

OUT const char *cudaGetErrorString(cudaError_t error)
{
    const char *text;
    if (error == cudaErrorInvalidConfiguration)
        return "invalid configuration argument";
    if (error == cudaErrorInvalidDeviceFunction)
        return "invalid device function";
    cuGetErrorString((CUresult)error, &text);
    return text;
}

OUT const char *cudaGetErrorName(cudaError_t error)
{
    const char *name;
    cuGetErrorName((CUresult)error, &name);
    return name;
}

RT cudaDriverGetVersion(int *version) { return done(cuDriverGetVersion(version)); }

RT cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

RT cudaGetDeviceCount(int *count) { DO(cuDeviceGetCount(count)); }

RT cudaSetDevice(int device)
{
    CUcontext ctx, now = NULL;
    BEGIN();
    cuCtxGetCurrent(&now);
    CUresult result = cuDevicePrimaryCtxRetain(&ctx, device);
    if (result != CUDA_SUCCESS)
        return done(result);
    if (ctx == now)
        cuDevicePrimaryCtxRelease(device);
    return done(cuCtxSetCurrent(ctx));
}

RT cudaGetDevice(int *device) { DO(cuCtxGetDevice(device)); }

RT cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    DO(cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

RT cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    BEGIN();
    memset(p, 0, sizeof *p);
    CUresult result = cuDeviceGetName(p->name, sizeof p->name, device);
    if (result != CUDA_SUCCESS)
        return done(result);
    cuDeviceGetUuid((CUuuid *)&p->uuid, device);
    cuDeviceTotalMem(&p->totalGlobalMem, device);
#define A(field, name) do { int v_; cuDeviceGetAttribute(&v_, CU_DEVICE_ATTRIBUTE_##name, device); p->field = v_; } while (0)
    A(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK);
    A(regsPerBlock, MAX_REGISTERS_PER_BLOCK);
    A(warpSize, WARP_SIZE);
    A(memPitch, MAX_PITCH);
    A(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
    A(maxThreadsDim[0], MAX_BLOCK_DIM_X);
    A(maxThreadsDim[1], MAX_BLOCK_DIM_Y);
    A(maxThreadsDim[2], MAX_BLOCK_DIM_Z);
    A(maxGridSize[0], MAX_GRID_DIM_X);
    A(maxGridSize[1], MAX_GRID_DIM_Y);
    A(maxGridSize[2], MAX_GRID_DIM_Z);
    A(totalConstMem, TOTAL_CONSTANT_MEMORY);
    A(major, COMPUTE_CAPABILITY_MAJOR);
    A(minor, COMPUTE_CAPABILITY_MINOR);
    A(textureAlignment, TEXTURE_ALIGNMENT);
    A(multiProcessorCount, MULTIPROCESSOR_COUNT);
    A(canMapHostMemory, CAN_MAP_HOST_MEMORY);
    A(concurrentKernels, CONCURRENT_KERNELS);
    A(ECCEnabled, ECC_ENABLED);
    A(pciBusID, PCI_BUS_ID);
    A(asyncEngineCount, ASYNC_ENGINE_COUNT);
    A(unifiedAddressing, UNIFIED_ADDRESSING);
    A(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH);
    A(l2CacheSize, L2_CACHE_SIZE);
    A(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE);
    A(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR);
    A(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED);
    A(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED);
    A(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED);
    A(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    A(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR);
    A(managedMemory, MANAGED_MEMORY);
    A(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS);
    A(cooperativeLaunch, COOPERATIVE_LAUNCH);
    A(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    A(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR);
    A(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK);
    A(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED);
#undef A
    return cudaSuccess;
}

RT cudaDeviceGetPCIBusId(char *id, int length, int device) { DO(cuDeviceGetPCIBusId(id, length, device)); }
RT cudaDeviceSynchronize(void) { DO(cuCtxSynchronize()); }
RT cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { DO(cuCtxGetStreamPriorityRange(least, greatest)); }
RT cudaDeviceCanAccessPeer(int *can, int device, int peer) { DO(cuDeviceCanAccessPeer(can, device, peer)); }

RT cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext ctx;
    BEGIN();
    CUresult result = cuDevicePrimaryCtxRetain(&ctx, peer);
    return done(result == CUDA_SUCCESS ? cuCtxEnablePeerAccess(ctx, flags) : result);
}

RT cudaProfilerStart(void) { return cudaSuccess; }
RT cudaProfilerStop(void) { return cudaSuccess; }

RT cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status)
{
    DO(cuGetProcAddress(name, function, (int)version, flags, (CUdriverProcAddressQueryResult *)status));
}
