/* Registration of kernels and variables, launches, attributes of functions. */
#include "runtime.h"

struct module { CUlibrary library; };
struct symbol { const void *key; struct module *module; const char *name; size_t size; void *handle; };

static struct symbol *symbols;
static size_t n_symbols, room_symbols;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct symbol *slot(struct symbol *table, size_t room, const void *key)
{
    size_t at = ((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15ull >> 20;
    while (table[at & (room - 1)].key && table[at & (room - 1)].key != key)
        at++;
    return &table[at & (room - 1)];
}

static void add_symbol(struct symbol symbol)
{
    pthread_mutex_lock(&lock);
    if (2 * n_symbols >= room_symbols) {
        size_t room = room_symbols ? 2 * room_symbols : 1 << 16;
        struct symbol *table = calloc(room, sizeof *table);
        for (size_t i = 0; i < room_symbols; i++)
            if (symbols[i].key)
                *slot(table, room, symbols[i].key) = symbols[i];
        free(symbols);
        symbols = table;
        room_symbols = room;
    }
    struct symbol *at = slot(symbols, room_symbols, symbol.key);
    n_symbols += !at->key;
    *at = symbol;
    pthread_mutex_unlock(&lock);
}

static CUresult find_symbol(const void *key, struct symbol *found)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (room_symbols) {
        struct symbol *at = slot(symbols, room_symbols, key);
        if (at->key) {
            result = CUDA_SUCCESS;
            if (!at->module->library)
                result = cuLibraryLoadData(&at->module->library, at->module, NULL, NULL, 0, NULL, NULL, 0);
            if (!at->handle && !at->size)
                cuLibraryGetKernel((CUkernel *)&at->handle, at->module->library, at->name);
            *found = *at;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUfunction function_of(const void *key)
{
    struct symbol symbol;
    return find_symbol(key, &symbol) == CUDA_SUCCESS ? (CUfunction)symbol.handle : NULL;
}

OUT void **__cudaRegisterFatBinary(void *image) { (void)image; return calloc(1, sizeof(struct module)); }
OUT void __cudaRegisterFatBinaryEnd(void **module) { (void)module; }
OUT void __cudaUnregisterFatBinary(void **module) { (void)module; }
OUT char __cudaInitModule(void **module) { (void)module; return 1; }

OUT void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int limit, void *tid,
                                void *bid, void *block, void *grid, int *warp)
{
    (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    add_symbol((struct symbol){.key = host, .module = (struct module *)module, .name = name});
}

OUT void __cudaRegisterVar(void **module, char *host, char *device, const char *name, int ext, size_t size, int constant,
                           int global)
{
    (void)device, (void)ext, (void)constant, (void)global;
    add_symbol((struct symbol){.key = host, .module = (struct module *)module, .name = name, .size = size});
}

static __thread struct { dim3 grid, block; size_t shared; cudaStream_t stream; } calls[16];
static __thread int n_calls;

OUT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    if (n_calls == 16)
        return 1;
    calls[n_calls].grid = grid, calls[n_calls].block = block, calls[n_calls].shared = shared;
    calls[n_calls++].stream = stream;
    return 0;
}

RT __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (!n_calls)
        return last = cudaErrorMissingConfiguration;
    n_calls--;
    *grid = calls[n_calls].grid, *block = calls[n_calls].block, *shared = calls[n_calls].shared;
    *(cudaStream_t *)stream = calls[n_calls].stream;
    return cudaSuccess;
}

/* The one kernel of torch that is carried out: filling contiguous memory with a value (zeros, ones, full). Without it a
 * tensor made by torch.zeros in memory that was used before would hold what was there. The arguments are the number of
 * elements, the value and the pointer. Other kernels leave their outputs as they were. */
static CUresult fill(const char *name, void **args, cudaStream_t stream)
{
    static const struct { const char *type; int size; } types[] = {
        {"f", 4}, {"d", 8}, {"i", 4}, {"l", 8}, {"s", 2}, {"b", 1}, {"h", 1}, {"a", 1}, {"N3c108BFloat16E", 2},
        {"N3c104HalfE", 2}};
    const char *type = strstr(name, "11FillFunctorI");
    int size = 0;
    if (!type || (!strstr(name, "29vectorized_elementwise_kernel") && !strstr(name, "27unrolled_elementwise_kernel")))
        return CUDA_SUCCESS;
    type += strlen("11FillFunctorI");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strncmp(type, types[i].type, strlen(types[i].type)) && type[strlen(types[i].type)] == 'E')
            size = types[i].size;
    size_t n = (size_t)*(int *)args[0];
    CUdeviceptr to = *(CUdeviceptr *)args[2];
    unsigned value[2] = {0, 0};
    memcpy(value, args[1], (size_t)size);
    switch (size) {
    case 1: return cuMemsetD8Async(to, (unsigned char)value[0], n, stream);
    case 2: return cuMemsetD16Async(to, (unsigned short)value[0], n, stream);
    case 4: return cuMemsetD32Async(to, value[0], n, stream);
    case 8: {
        CUresult result = cuMemsetD2D32Async(to, 8, value[0], 1, n, stream);
        return result == CUDA_SUCCESS ? cuMemsetD2D32Async(to + 4, 8, value[1], 1, n, stream) : result;
    }
    default: return CUDA_SUCCESS;
    }
}

static cudaError_t launch(CUfunction function, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t stream)
{
    BEGIN();
    if (!function)
        return last = cudaErrorInvalidDeviceFunction;
    CUresult result = cuLaunchKernel(function, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, stream, args, NULL);
    if (result == CUDA_ERROR_INVALID_VALUE)
        return last = cudaErrorInvalidConfiguration;
    const char *name = "";
    cuFuncGetName(&name, function);
    return done(result == CUDA_SUCCESS ? fill(name, args, stream) : result);
}

RT cudaLaunchKernel(const void *key, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream)
{
    return launch(function_of(key), grid, block, args, shared, stream);
}

RT __cudaGetKernel(cudaKernel_t *kernel, const void *key)
{
    *kernel = (cudaKernel_t)function_of(key);
    return *kernel ? cudaSuccess : (last = cudaErrorInvalidDeviceFunction);
}

RT __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream)
{
    return launch((CUfunction)kernel, grid, block, args, shared, stream);
}

RT cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *key, void **args)
{
    CUlaunchConfig config = {.gridDimX = c->gridDim.x, .gridDimY = c->gridDim.y, .gridDimZ = c->gridDim.z,
                             .blockDimX = c->blockDim.x, .blockDimY = c->blockDim.y, .blockDimZ = c->blockDim.z,
                             .sharedMemBytes = (unsigned)c->dynamicSmemBytes, .hStream = c->stream,
                             .attrs = (CUlaunchAttribute *)c->attrs, .numAttrs = c->numAttrs};
    CUfunction function = function_of(key);
    DO(cuLaunchKernelEx(&config, function ? function : (CUfunction)key, args, NULL));
}

RT cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user) { DO(cuLaunchHostFunc(stream, fn, user)); }

RT cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *key)
{
    CUfunction function = function_of(key);
    BEGIN();
    if (!function)
        return last = cudaErrorInvalidDeviceFunction;
    memset(attributes, 0, sizeof *attributes);
    cuFuncGetAttribute(&attributes->maxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
    cuFuncGetAttribute(&attributes->numRegs, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    cuFuncGetAttribute(&attributes->ptxVersion, CU_FUNC_ATTRIBUTE_PTX_VERSION, function);
    cuFuncGetAttribute(&attributes->binaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION, function);
    cuFuncGetAttribute(&attributes->maxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function);
    attributes->preferredShmemCarveout = -1;
    return cudaSuccess;
}

RT cudaFuncSetAttribute(const void *key, enum cudaFuncAttribute attribute, int value)
{
    DO(cuFuncSetAttribute(function_of(key), (CUfunction_attribute)attribute, value));
}

RT cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *key, int threads, size_t shared,
                                                          unsigned flags)
{
    DO(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function_of(key), threads, shared, flags));
}

RT cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *key, int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, key, threads, shared, 0);
}

RT cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values, unsigned n,
                       enum cudaLibraryOption *library_options, void **library_values, unsigned library_n)
{
    (void)options, (void)values, (void)n, (void)library_options, (void)library_values, (void)library_n;
    DO(cuLibraryLoadData((CUlibrary *)library, code, NULL, NULL, 0, NULL, NULL, 0));
}

RT cudaLibraryUnload(cudaLibrary_t library) { DO(cuLibraryUnload((CUlibrary)library)); }

RT cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    DO(cuLibraryGetKernel((CUkernel *)kernel, (CUlibrary)library, name));
}

RT cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device)
{
    DO(cuKernelSetAttribute((CUfunction_attribute)attribute, value, (CUkernel)kernel, device));
}

static CUresult address_of(const void *key, CUdeviceptr *ptr)
{
    struct symbol symbol;
    CUresult result = find_symbol(key, &symbol);
    return result == CUDA_SUCCESS ? cuLibraryGetGlobal(ptr, NULL, symbol.module->library, symbol.name) : result;
}

RT cudaGetSymbolAddress(void **ptr, const void *key) { DO(address_of(key, (CUdeviceptr *)ptr)); }

RT cudaMemcpyToSymbol(const void *key, const void *from, size_t n, size_t offset, enum cudaMemcpyKind kind)
{
    CUdeviceptr ptr = 0;
    (void)kind;
    BEGIN();
    CUresult result = address_of(key, &ptr);
    return done(result == CUDA_SUCCESS ? cuMemcpy(ptr + offset, (CUdeviceptr)from, n) : result);
}
