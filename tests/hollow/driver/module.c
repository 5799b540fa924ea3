/* Modules, libraries, functions and their attributes. */
#include "hollow.h"

#define GLOBAL_BYTES (1 << 20)  /* every global symbol is this big: sizes are not read from the image */

static CUmodule new_module(int dev)
{
    CUmodule module = calloc(1, sizeof *module);
    module->dev = dev;
    return module;
}

static struct CUfunc_st *get_function(CUmodule module, const char *name)
{
    struct CUfunc_st *function;
    pthread_mutex_lock(&lock);
    for (function = module->functions; function && strcmp(function->name, name); function = function->next)
        ;
    if (!function) {
        function = calloc(1, sizeof *function);
        *function = (struct CUfunc_st){.name = strdup(name), .module = module, .max_dynamic = SHARED_DEFAULT,
                                       .carveout = -1, .next = module->functions};
        module->functions = function;
    }
    pthread_mutex_unlock(&lock);
    return function;
}

static CUresult get_global(CUmodule module, const char *name, int dev, CUdeviceptr *ptr, size_t *size)
{
    struct global *global;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (global = module->globals; global && (global->dev != dev || strcmp(global->name, name)); global = global->next)
        ;
    if (!global) {
        global = calloc(1, sizeof *global);
        *global = (struct global){.name = strdup(name), .dev = dev, .next = module->globals};
        result = allocate((uintptr_t *)&global->ptr, GLOBAL_BYTES, CU_MEMORYTYPE_DEVICE, dev, 0);
        module->globals = global;
    }
    if (ptr)
        *ptr = global->ptr;
    if (size)
        *size = GLOBAL_BYTES;
    pthread_mutex_unlock(&lock);
    return result;
}

API cuModuleLoadData(CUmodule *module, const void *image)
{
    CONTEXT(current());
    NEED(module && image);
    *module = new_module(current()->dev);
    return CUDA_SUCCESS;
}

API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n, CUjit_option *options, void **values)
{
    (void)n, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

API cuModuleLoad(CUmodule *module, const char *path)
{
    if (access(path, R_OK))
        return refuse(__func__, CUDA_ERROR_FILE_NOT_FOUND, path);
    return cuModuleLoadData(module, path);
}

API cuModuleUnload(CUmodule module)  /* small, and functions of it may be in use: not freed */
{
    NEED(module);
    return CUDA_SUCCESS;
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    NEED(function && module && name);
    *function = get_function(module, name);
    return CUDA_SUCCESS;
}

API cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned int n,
                      CUlibraryOption *library_options, void **library_values, unsigned int library_n)
{
    (void)options, (void)values, (void)n, (void)library_options, (void)library_values, (void)library_n;
    NEED(library && code);
    *library = (CUlibrary)new_module(-1);
    return CUDA_SUCCESS;
}

API cuLibraryUnload(CUlibrary library)
{
    NEED(library);
    return CUDA_SUCCESS;
}

API cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    NEED(kernel && library && name);
    *kernel = (CUkernel)get_function((CUmodule)library, name);
    return CUDA_SUCCESS;
}

API cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *size, CUlibrary library, const char *name)
{
    CONTEXT(current());
    NEED(library && name);
    return get_global((CUmodule)library, name, current()->dev, ptr, size);
}

API cuFuncGetName(const char **name, CUfunction function)
{
    NEED(function);
    *name = function->name;
    return CUDA_SUCCESS;
}

API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    NEED(value && function);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = 80; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 80; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->max_dynamic; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = function->carveout; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    NEED(function);
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        NEED(value >= 0 && value <= SHARED_OPTIN);
        function->max_dynamic = value;
    } else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        NEED(value >= -1 && value <= 100);
        function->carveout = value;
    }
    return CUDA_SUCCESS;
}

API cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice dev)
{
    DEVICE(dev);
    return cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}

API cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    (void)config;
    NEED(function);
    return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads, size_t shared,
                                                         unsigned int flags)
{
    (void)flags;
    NEED(blocks && function && threads > 0);
    int by_threads = threads > 1024 ? 0 : 2048 / ((threads + 31) / 32 * 32);
    int by_shared = shared > (size_t)SHARED_OPTIN ? 0 : (int)((164 << 10) / (shared + 1024));
    int least = by_threads < by_shared ? by_threads : by_shared;
    *blocks = least > 32 ? 32 : least;
    return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

API cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
    (void)config;
    NEED(function);
    *clusters = 0;  /* compute capability 8.0 has none */
    return CUDA_SUCCESS;
}

API cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                           const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                           const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)map, (void)type, (void)rank, (void)address, (void)dims, (void)strides, (void)box, (void)element_strides;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    return refuse(__func__, CUDA_ERROR_NOT_SUPPORTED, "compute capability 8.0 has no tensor maps");
}

/* Linking is accepted; the image that comes out is a token. */
struct CUlinkState_st { char image[64]; };

API cuLinkCreate(unsigned int n, CUjit_option *options, void **values, CUlinkState *state)
{
    (void)n, (void)options, (void)values;
    *state = calloc(1, sizeof **state);
    return CUDA_SUCCESS;
}

API cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int n,
                  CUjit_option *options, void **values)
{
    (void)type, (void)data, (void)size, (void)name, (void)n, (void)options, (void)values;
    NEED(state);
    return CUDA_SUCCESS;
}

API cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
    NEED(state);
    *image = state->image;
    if (size)
        *size = sizeof state->image;
    return CUDA_SUCCESS;
}
