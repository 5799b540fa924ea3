/* Device and pinned host memory: the table of allocations. */
#include "hollow.h"

static struct allocation *allocations;  /* by address */
static size_t n_allocations, room_allocations;

struct allocation *find(uintptr_t ptr)
{
    size_t low = 0, high = n_allocations;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (allocations[middle].base <= ptr)
            low = middle + 1;
        else
            high = middle;
    }
    return low && ptr - allocations[low - 1].base < allocations[low - 1].size ? &allocations[low - 1] : NULL;
}

static bool known(uintptr_t ptr)
{
    pthread_mutex_lock(&lock);
    bool found = find(ptr) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

void keep(struct allocation entry)
{
    pthread_mutex_lock(&lock);
    if (n_allocations == room_allocations) {
        room_allocations = room_allocations ? 2 * room_allocations : 256;
        allocations = realloc(allocations, room_allocations * sizeof *allocations);
    }
    size_t at = n_allocations++;
    for (; at && allocations[at - 1].base > entry.base; at--)
        allocations[at] = allocations[at - 1];
    entry.id = serial++;
    allocations[at] = entry;
    if (entry.type == CU_MEMORYTYPE_DEVICE)
        {
        struct stats *s = &stats[entry.dev];
        s->used += entry.size;
        s->peak = s->used > s->peak ? s->used : s->peak;
    }
    pthread_mutex_unlock(&lock);
}

CUresult drop(const char *where, uintptr_t base, bool host)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct allocation *entry = find(base);
    if (!entry || entry->base != base || (entry->type == CU_MEMORYTYPE_HOST) != host) {
        result = refuse(where, CUDA_ERROR_INVALID_VALUE, "not the start of such an allocation");
    } else {
        if (entry->owned)
            munmap((void *)base, entry->size);
        if (entry->type == CU_MEMORYTYPE_DEVICE)
            stats[entry->dev].used -= entry->size;
        memmove(entry, entry + 1, (char *)(allocations + --n_allocations) - (char *)entry);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult allocate(uintptr_t *ptr, size_t size, CUmemorytype type, int dev, unsigned flags)
{
    NEED(ptr && size);
    if (type == CU_MEMORYTYPE_DEVICE && stats[dev].used + size > device_memory)
        return refuse(__func__, CUDA_ERROR_OUT_OF_MEMORY, "HOLLOW_MEMORY");
    size = (size + 4095) & ~(size_t)4095;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return refuse(__func__, CUDA_ERROR_OUT_OF_MEMORY, "mmap");
    *ptr = (uintptr_t)memory;
    keep((struct allocation){.base = *ptr, .size = size, .type = type, .dev = dev, .flags = flags,
                             .owned = true});
    return CUDA_SUCCESS;
}

API cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    CONTEXT(current());
    *free_bytes = device_memory - stats[current()->dev].used;
    *total = device_memory;
    return CUDA_SUCCESS;
}

API cuMemAlloc(CUdeviceptr *ptr, size_t size)
{
    CONTEXT(current());
    TRY(unsafe(FORBIDDEN_OTHER, __func__));
    return allocate((uintptr_t *)ptr, size, CU_MEMORYTYPE_DEVICE, current()->dev, 0);
}

API cuMemFree(CUdeviceptr ptr)
{
    if (!ptr)
        return CUDA_SUCCESS;
    TRY(unsafe(FORBIDDEN_OTHER, __func__));
    return drop(__func__, ptr, false);
}

API cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct allocation *entry = find(ptr);
    if (!entry)
        result = refuse(__func__, CUDA_ERROR_NOT_FOUND, "unknown pointer");
    else {
        if (base)
            *base = entry->base;
        if (size)
            *size = entry->size;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

API cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
    CONTEXT(current());
    TRY(unsafe(FORBIDDEN_OTHER, __func__));
    return allocate((uintptr_t *)ptr, size, CU_MEMORYTYPE_HOST, current()->dev, flags);
}

API cuMemFreeHost(void *ptr)
{
    if (!ptr)
        return CUDA_SUCCESS;
    TRY(unsafe(FORBIDDEN_OTHER, __func__));
    return drop(__func__, (uintptr_t)ptr, true);
}

API cuMemHostRegister(void *ptr, size_t size, unsigned int flags)
{
    CONTEXT(current());
    NEED(ptr && size);
    if (known((uintptr_t)ptr))
        return refuse(__func__, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "registered before");
    keep((struct allocation){.base = (uintptr_t)ptr, .size = size, .type = CU_MEMORYTYPE_HOST, .dev = current()->dev,
                             .flags = flags});
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *ptr) { return drop(__func__, (uintptr_t)ptr, true); }

API cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned int flags)
{
    (void)flags;
    NEED(known((uintptr_t)host));
    *device = (CUdeviceptr)host;
    return CUDA_SUCCESS;
}

static bool pointer_attribute(void *data, CUpointer_attribute attribute, uintptr_t ptr)
{
    struct allocation *entry = find(ptr);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = entry ? &primary[entry->dev] : NULL; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = entry ? entry->type : 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = entry ? ptr : 0; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = !entry || entry->type == CU_MEMORYTYPE_HOST ? (void *)ptr : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = entry ? entry->id : 0; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = entry ? entry->dev : -2; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = entry ? entry->base : 0; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = entry ? entry->size : 0; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned char *)data = entry != NULL; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(cuuint64_t *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(unsigned *)data = entry ? 3 : 0; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = NULL; break;
    default: *(unsigned *)data = 0;
    }
    return entry != NULL;
}

API cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    NEED(data);
    pthread_mutex_lock(&lock);
    bool known = pointer_attribute(data, attribute, ptr);
    pthread_mutex_unlock(&lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuPointerGetAttributes(unsigned int count, CUpointer_attribute *wanted, void **data, CUdeviceptr ptr)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++)
        pointer_attribute(data[i], wanted[i], ptr);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
