/* Copies and memsets. */
#include "hollow.h"

static void run_copy(const struct CUgraphNode_st *n)
{
    for (size_t y = 0; y < n->height; y++)
        memmove((char *)n->dst + y * n->pitch_dst, (char *)n->src + y * n->pitch_src, n->width);
}

#define PAGE ((uintptr_t)4096)

/* Zeros of whole pages come from the kernel: benchmarks clear a buffer of 256 MB before every call, thousands of times. */
static void clear(char *from, size_t bytes)
{
    uintptr_t first = ((uintptr_t)from + PAGE - 1) & ~(PAGE - 1), last = ((uintptr_t)from + bytes) & ~(PAGE - 1);
    pthread_mutex_lock(&lock);
    struct allocation *entry = find((uintptr_t)from);
    bool ours = entry && entry->type == CU_MEMORYTYPE_DEVICE;
    pthread_mutex_unlock(&lock);
    if (bytes < 64 * PAGE || !ours || madvise((void *)first, last - first, MADV_DONTNEED)) {
        memset(from, 0, bytes);
        return;
    }
    memset(from, 0, first - (uintptr_t)from);
    memset((void *)last, 0, (uintptr_t)from + bytes - last);
}

static void run_set(const struct CUgraphNode_st *n)
{
    for (size_t y = 0; y < n->height; y++) {
        char *row = (char *)n->dst + y * n->pitch_dst;
        if (n->value == 0)
            clear(row, n->width * n->element);
        else if (n->element == 1)
            memset(row, (int)n->value, n->width);
        else
            for (size_t x = 0; x < n->width; x++)
                memcpy(row + x * n->element, &n->value, n->element);
    }
}

static bool inside(const void *ptr, size_t bytes)  /* pageable memory is not in the table and passes */
{
    struct allocation *entry = find((uintptr_t)ptr);
    return !entry || (uintptr_t)ptr + bytes <= entry->base + entry->size;
}

static size_t extent(size_t width, size_t pitch, size_t height)
{
    return height ? (height - 1) * pitch + width : 0;
}

enum { ANY, HOST, DEVICE_SIDE };  /* what a side of a copy must be */

static CUresult copy(const char *where, struct CUgraphNode_st what, int to, int from, CUstream stream, bool waits)
{
    CUgraphNode node;
    CUresult result = CUDA_SUCCESS;
    size_t to_bytes = extent(what.width, what.pitch_dst, what.height);
    size_t from_bytes = extent(what.width, what.pitch_src, what.height);
    if (!what.width || !to_bytes)
        return CUDA_SUCCESS;
    if (!stream)
        return refuse(where, CUDA_ERROR_INVALID_CONTEXT, "no context");
    pthread_mutex_lock(&lock);
    bool known_dst = find((uintptr_t)what.dst), known_src = find((uintptr_t)what.src);
    if ((to == DEVICE_SIDE && !known_dst) || (from == DEVICE_SIDE && !known_src))
        result = refuse(where, CUDA_ERROR_INVALID_VALUE, "not a device pointer");
    else if (!inside(what.dst, to_bytes) || !inside(what.src, from_bytes))
        result = refuse(where, CUDA_ERROR_INVALID_VALUE, "the copy leaves the allocation");
    else if (stream->capture && (!known_dst || !known_src))
        result = invalidate(stream->capture, FORBIDDEN_PAGEABLE, where, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                            "pageable memory");
    pthread_mutex_unlock(&lock);
    TRY(result);
    if (waits)
        TRY(unsafe(FORBIDDEN_SYNC, where));
    TRY(enter(where, stream, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    what.run = run_copy;
    stats[stream->ctx->dev].copies++;
    stats[stream->ctx->dev].copied_bytes += what.width * what.height;
    if (!node) {
        run_copy(&what);
        return CUDA_SUCCESS;
    }
    node->run = run_copy, node->dst = what.dst, node->src = what.src, node->width = what.width;
    node->height = what.height, node->pitch_dst = what.pitch_dst, node->pitch_src = what.pitch_src;
    return CUDA_SUCCESS;
}

#define FLAT(to, from, n) \
    (struct CUgraphNode_st){.dst = (void *)(to), .src = (void *)(from), .width = (n), .height = 1}
#define LEGACY resolve(NULL)

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(__func__, FLAT(to, from, n), ANY, ANY, LEGACY, 1); }

API cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n)
{
    return copy(__func__, FLAT(to, from, n), DEVICE_SIDE, ANY, LEGACY, true);
}

API cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n)
{
    return copy(__func__, FLAT(to, from, n), ANY, DEVICE_SIDE, LEGACY, true);
}

API cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n)
{
    return copy(__func__, FLAT(to, from, n), DEVICE_SIDE, DEVICE_SIDE, LEGACY, true);
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream)
{
    return copy(__func__, FLAT(to, from, n), ANY, ANY, resolve(stream), false);
}

API cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream stream)
{
    return copy(__func__, FLAT(to, from, n), DEVICE_SIDE, ANY, resolve(stream), false);
}

API cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream stream)
{
    return copy(__func__, FLAT(to, from, n), ANY, DEVICE_SIDE, resolve(stream), false);
}

API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream)
{
    return copy(__func__, FLAT(to, from, n), DEVICE_SIDE, DEVICE_SIDE, resolve(stream), false);
}

/* A side of a pitched copy; arrays (textures) are not supported. */
#define SIDE(p, side) \
    ((char *)((p)->side##MemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)(p)->side##Host : (p)->side##Device) + \
     (p)->side##Y * (p)->side##Pitch + (p)->side##XInBytes)

API cuMemcpy2DAsync(const CUDA_MEMCPY2D *p, CUstream stream)
{
    NEED(p->dstMemoryType != CU_MEMORYTYPE_ARRAY && p->srcMemoryType != CU_MEMORYTYPE_ARRAY);
    struct CUgraphNode_st what = {.dst = SIDE(p, dst), .src = SIDE(p, src), .width = p->WidthInBytes,
                                  .height = p->Height, .pitch_dst = p->dstPitch ? p->dstPitch : p->WidthInBytes,
                                  .pitch_src = p->srcPitch ? p->srcPitch : p->WidthInBytes};
    return copy(__func__, what, ANY, ANY, resolve(stream), false);
}

static CUresult set(const char *where, uintptr_t to, size_t pitch, unsigned value, unsigned element, size_t width,
                    size_t height, CUstream stream)
{
    CUgraphNode node;
    struct CUgraphNode_st what = {.run = run_set, .dst = (void *)to, .pitch_dst = pitch, .value = value,
                                  .element = element, .width = width, .height = height};
    if (!width || !height)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    bool good = find(to) && inside(what.dst, extent(width * element, pitch, height));
    pthread_mutex_unlock(&lock);
    if (!good)
        return refuse(where, CUDA_ERROR_INVALID_VALUE, "not a device pointer, or leaves the allocation");
    TRY(enter(where, stream, CU_GRAPH_NODE_TYPE_MEMSET, &node));
    stats[stream->ctx->dev].memsets++;
    if (!node) {
        run_set(&what);
        return CUDA_SUCCESS;
    }
    node->run = run_set, node->dst = what.dst, node->pitch_dst = pitch, node->value = value, node->element = element;
    node->width = width, node->height = height;
    return CUDA_SUCCESS;
}

#define MEMSETS(bits, type)                                                                                           \
    API cuMemsetD##bits(CUdeviceptr to, type value, size_t n)                                                         \
    { return set(__func__, to, 0, value, bits / 8, n, 1, LEGACY); }                                                   \
    API cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t n, CUstream stream)                                 \
    { return set(__func__, to, 0, value, bits / 8, n, 1, resolve(stream)); }                                          \
    API cuMemsetD2D##bits(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)                      \
    { return set(__func__, to, pitch, value, bits / 8, width, height, LEGACY); }                                      \
    API cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream s)   \
    { return set(__func__, to, pitch, value, bits / 8, width, height, resolve(s)); }
MEMSETS(8, unsigned char)
MEMSETS(16, unsigned short)
MEMSETS(32, unsigned int)
