/* Virtual memory management and memory pools. */
#include "hollow.h"

/* Virtual memory management: reserving maps the pages, mapping enters them into the table. */

API cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
    (void)prop, (void)option;
    *size = 2 << 20;
    return CUDA_SUCCESS;
}

API cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr address, unsigned long long flags)
{
    (void)alignment, (void)address, (void)flags;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return refuse(__func__, CUDA_ERROR_OUT_OF_MEMORY, "mmap");
    *ptr = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

API cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    munmap((void *)ptr, size);
    return CUDA_SUCCESS;
}

API cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                unsigned long long flags)
{
    NEED(prop && !flags);
    DEVICE(prop->location.id);
    if (stats[prop->location.id].used + size > device_memory)
        return refuse(__func__, CUDA_ERROR_OUT_OF_MEMORY, "HOLLOW_MEMORY");
    struct physical *physical = malloc(sizeof *physical);
    *physical = (struct physical){size, *prop};
    *handle = (CUmemGenericAllocationHandle)physical;
    return CUDA_SUCCESS;
}

API cuMemRelease(CUmemGenericAllocationHandle handle)
{
    free((void *)handle);
    return CUDA_SUCCESS;
}

API cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)offset, (void)flags;
    keep((struct allocation){.base = ptr, .size = size, .type = CU_MEMORYTYPE_DEVICE,
                             .dev = ((struct physical *)handle)->prop.location.id});
    return CUDA_SUCCESS;
}

API cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    for (uintptr_t at = ptr; at < ptr + size;) {
        pthread_mutex_lock(&lock);
        struct allocation *entry = find(at);
        uintptr_t next = entry && entry->base == at ? at + entry->size : 0;
        pthread_mutex_unlock(&lock);
        NEED(next);
        madvise((void *)at, next - at, MADV_DONTNEED);
        TRY(drop(__func__, at, false));
        at = next;
    }
    return CUDA_SUCCESS;
}

API cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    (void)ptr, (void)size, (void)desc, (void)count;
    return CUDA_SUCCESS;
}

/* Pools: every allocation is one of its own. */

static struct CUmemPoolHandle_st pools[MAX_DEVICES];

static void __attribute__((constructor)) set_up_pools(void)
{
    for (int dev = 0; dev < MAX_DEVICES; dev++)
        pools[dev].dev = dev;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
    DEVICE(dev);
    *pool = &pools[dev];
    return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    (void)pool, (void)keep_bytes;
    return CUDA_SUCCESS;
}

static bool narrow(CUmemPool_attribute attribute) { return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; }

API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    NEED(pool && (unsigned)attribute < 32);
    pool->attributes[attribute] = narrow(attribute) ? *(unsigned *)value : *(cuuint64_t *)value;
    return CUDA_SUCCESS;
}

API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    NEED(pool && (unsigned)attribute < 32);
    if (narrow(attribute))
        *(unsigned *)value = (unsigned)pool->attributes[attribute];
    else
        *(cuuint64_t *)value = pool->attributes[attribute];
    return CUDA_SUCCESS;
}

API cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    (void)pool, (void)map, (void)count;
    return CUDA_SUCCESS;
}

API cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
    CUgraphNode node;
    STREAM(stream);
    TRY(enter(__func__, stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &node));
    return allocate((uintptr_t *)ptr, size, CU_MEMORYTYPE_DEVICE, stream->ctx->dev, 0);
}

API cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    CUgraphNode node;
    STREAM(stream);
    TRY(enter(__func__, stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &node));
    return node ? CUDA_SUCCESS : drop(__func__, ptr, false);  /* captured: the graph may run again, so it stays */
}
