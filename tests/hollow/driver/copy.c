/* Copies and memsets. */
#include "hollow.h"

static void run_copy(const struct CUgraphNode_st *n)
{
    for (size_t z = 0; z < n->depth; z++)
        for (size_t y = 0; y < n->height; y++)
            memmove((char *)n->dst + z * n->slice_dst + y * n->pitch_dst,
                    (char *)n->src + z * n->slice_src + y * n->pitch_src, n->width);
}

#define PAGE ((uintptr_t)4096)

/* Zeros of whole pages come from the kernel: benchmarks clear a buffer of 256 MB before every call, thousands of times. */
static void clear(char *from, size_t bytes)
{
    uintptr_t first = ((uintptr_t)from + PAGE - 1) & ~(PAGE - 1), last = ((uintptr_t)from + bytes) & ~(PAGE - 1);
    struct allocation *entry = find((uintptr_t)from);
    if (bytes < 64 * PAGE || !entry || entry->type != CU_MEMORYTYPE_DEVICE ||
        madvise((void *)first, last - first, MADV_DONTNEED)) {
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

static size_t extent(size_t width, size_t pitch, size_t height, size_t slice, size_t slices)
{
    return height && slices ? (slices - 1) * slice + (height - 1) * pitch + width : 0;
}

enum { ANY, HOST, DEVICE_SIDE };  /* what a side of a copy must be */

static CUresult copy(const char *where, struct CUgraphNode_st what, int to, int from, CUstream stream, bool waits)
{
    CUgraphNode node;
    CUresult result = CUDA_SUCCESS;
    size_t to_bytes = extent(what.width, what.pitch_dst, what.height, what.slice_dst, what.depth);
    size_t from_bytes = extent(what.width, what.pitch_src, what.height, what.slice_src, what.depth);
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
    stats[stream->ctx->dev].copied_bytes += what.width * what.height * what.depth;
    if (!node) {
        run_copy(&what);
        return CUDA_SUCCESS;
    }
    node->run = run_copy, node->dst = what.dst, node->src = what.src, node->width = what.width;
    node->height = what.height, node->depth = what.depth, node->pitch_dst = what.pitch_dst;
    node->pitch_src = what.pitch_src, node->slice_dst = what.slice_dst, node->slice_src = what.slice_src;
    return CUDA_SUCCESS;
}

#define FLAT(to, from, n) \
    (struct CUgraphNode_st){.dst = (void *)(to), .src = (void *)(from), .width = (n), .height = 1, .depth = 1}
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

API cuMemcpyPeer(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t n)
{
    (void)to_ctx, (void)from_ctx;
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

API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t n, CUstream stream)
{
    (void)to_ctx, (void)from_ctx;
    return copy(__func__, FLAT(to, from, n), DEVICE_SIDE, DEVICE_SIDE, resolve(stream), false);
}

/* The sides of a pitched copy, of any of the structures that describe one; arrays (textures) are not supported. */
#define SIDE(p, side) ((p)->side##MemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)(p)->side##Host : (p)->side##Device)
#define PITCHED(p, z_dst, z_src, rows_dst, rows_src, slices)                                                     \
    (struct CUgraphNode_st){                                                                                     \
        .dst = (char *)SIDE(p, dst) + ((z_dst) * (rows_dst) + (p)->dstY) * (p)->dstPitch + (p)->dstXInBytes,     \
        .src = (char *)SIDE(p, src) + ((z_src) * (rows_src) + (p)->srcY) * (p)->srcPitch + (p)->srcXInBytes,     \
        .width = (p)->WidthInBytes, .height = (p)->Height, .depth = (slices),                                    \
        .pitch_dst = (p)->dstPitch ? (p)->dstPitch : (p)->WidthInBytes,                                          \
        .pitch_src = (p)->srcPitch ? (p)->srcPitch : (p)->WidthInBytes,                                          \
        .slice_dst = (p)->dstPitch * (rows_dst), .slice_src = (p)->srcPitch * (rows_src)}
#define LINEAR(p) NEED((p)->dstMemoryType != CU_MEMORYTYPE_ARRAY && (p)->srcMemoryType != CU_MEMORYTYPE_ARRAY)

API cuMemcpy2DAsync(const CUDA_MEMCPY2D *p, CUstream stream)
{
    LINEAR(p);
    return copy(__func__, PITCHED(p, (size_t)0, (size_t)0, (size_t)0, (size_t)0, 1), ANY, ANY, resolve(stream), false);
}

API cuMemcpy2D(const CUDA_MEMCPY2D *p)
{
    LINEAR(p);
    return copy(__func__, PITCHED(p, (size_t)0, (size_t)0, (size_t)0, (size_t)0, 1), ANY, ANY, LEGACY, true);
}

API cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *p) { return cuMemcpy2D(p); }

API cuMemcpy3DAsync(const CUDA_MEMCPY3D *p, CUstream stream)
{
    LINEAR(p);
    return copy(__func__, PITCHED(p, p->dstZ, p->srcZ, p->dstHeight, p->srcHeight, p->Depth), ANY, ANY,
                resolve(stream), false);
}

API cuMemcpy3D(const CUDA_MEMCPY3D *p)
{
    LINEAR(p);
    return copy(__func__, PITCHED(p, p->dstZ, p->srcZ, p->dstHeight, p->srcHeight, p->Depth), ANY, ANY, LEGACY, true);
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
    bool good = find(to) && inside(what.dst, extent(width * element, pitch, height, 0, 1));
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
