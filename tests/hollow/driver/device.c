/* Devices and contexts. */
#include "hollow.h"

static __thread CUcontext stack[64];  /* of current contexts, the last one is in force */
static __thread int depth;

CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }

API cuDeviceGetCount(int *count)
{
    NEED(count);
    *count = devices;
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

API cuDeviceGet(CUdevice *device, int ordinal)
{
    DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int length, CUdevice dev)
{
    DEVICE(dev);
    snprintf(name, length, "Hollow A100");
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    DEVICE(dev);
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "hollow", 6);
    uuid->bytes[15] = (char)dev;
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem(size_t *bytes, CUdevice dev)
{
    DEVICE(dev);
    *bytes = device_memory;
    return CUDA_SUCCESS;
}

/* Those of an A100 SXM4 40 GB; what is not named here is 0. */
const int attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = SHARED_DEFAULT,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 65536,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
    [CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1410000,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT] = 32,
    [CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
    [CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 108,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH] = 131072,
    [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH] = 131072,
    [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT] = 65536,
    [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH] = 268435456,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_ECC_ENABLED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE] = 1215000,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] = 5120,
    [CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 41943040,
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 3,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 8,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0,
    [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = 164 << 10,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536,
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO] = 2,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = SHARED_OPTIN,
    [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE] = 31457280,
    [CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE] = 134213632,
    [CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 1,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS] = 1,
    [CU_DEVICE_ATTRIBUTE_NUMA_ID] = -1,
    [CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] = -1,
};

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
    DEVICE(dev);
    NEED(value);
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *value = dev + 1;
    else
        *value = (unsigned)attribute < CU_DEVICE_ATTRIBUTE_MAX ? attributes[attribute] : 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *id, int length, CUdevice dev)
{
    DEVICE(dev);
    snprintf(id, length, "0000:%02x:00.0", dev + 1);
    return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    DEVICE(dev);
    DEVICE(peer);
    *can = dev != peer;
    return CUDA_SUCCESS;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    NEED(peer && !flags);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    DEVICE(dev);
    pthread_mutex_lock(&lock);
    primary[dev].retained++;
    pthread_mutex_unlock(&lock);
    *ctx = &primary[dev];
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease(CUdevice dev)
{
    DEVICE(dev);
    pthread_mutex_lock(&lock);
    bool held = primary[dev].retained > 0;
    primary[dev].retained -= held;
    pthread_mutex_unlock(&lock);
    return held ? CUDA_SUCCESS : refuse(__func__, CUDA_ERROR_INVALID_CONTEXT, "not retained");
}

API cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    DEVICE(dev);
    *flags = primary[dev].flags;
    *active = primary[dev].retained > 0;
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent(CUcontext ctx)
{
    NEED(depth < (int)(sizeof stack / sizeof *stack));
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent(CUcontext *ctx)
{
    if (!depth)
        return refuse(__func__, CUDA_ERROR_INVALID_CONTEXT, "empty stack");
    depth--;
    if (ctx)
        *ctx = stack[depth];
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext ctx)
{
    if (!depth)
        depth = 1;
    stack[depth - 1] = ctx;
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *ctx)
{
    NEED(ctx);
    *ctx = current();
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *dev)
{
    CONTEXT(current());
    *dev = current()->dev;
    return CUDA_SUCCESS;
}

API cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx)
{
    CONTEXT(ctx ? ctx : current());
    *dev = (ctx ? ctx : current())->dev;
    return CUDA_SUCCESS;
}

API cuCtxSetLimit(CUlimit limit, size_t value)
{
    CONTEXT(current());
    NEED((unsigned)limit < CU_LIMIT_MAX);
    current()->limits[limit] = value;
    return CUDA_SUCCESS;
}

API cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CONTEXT(current());
    NEED((unsigned)limit < CU_LIMIT_MAX);
    *value = current()->limits[limit];
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CONTEXT(current());
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}
