/* Memory, streams, events and graphs. */
#include "runtime.h"

RT cudaMalloc(void **ptr, size_t n)
{
    *ptr = NULL;
    if (!n)
        return cudaSuccess;
    DO(cuMemAlloc((CUdeviceptr *)ptr, n));
}

RT cudaFree(void *ptr) { DO(cuMemFree((CUdeviceptr)ptr)); }
RT cudaMallocAsync(void **ptr, size_t n, cudaStream_t stream) { DO(cuMemAllocAsync((CUdeviceptr *)ptr, n, stream)); }
RT cudaFreeAsync(void *ptr, cudaStream_t stream) { DO(cuMemFreeAsync((CUdeviceptr)ptr, stream)); }
RT cudaHostAlloc(void **ptr, size_t n, unsigned flags) { DO(cuMemHostAlloc(ptr, n, flags)); }
RT cudaFreeHost(void *ptr) { DO(cuMemFreeHost(ptr)); }
RT cudaHostRegister(void *ptr, size_t n, unsigned flags) { DO(cuMemHostRegister(ptr, n, flags)); }
RT cudaHostUnregister(void *ptr) { DO(cuMemHostUnregister(ptr)); }
RT cudaHostGetDevicePointer(void **dev, void *ptr, unsigned f) { DO(cuMemHostGetDevicePointer((CUdeviceptr *)dev, ptr, f)); }
RT cudaMemGetInfo(size_t *free_bytes, size_t *total) { DO(cuMemGetInfo(free_bytes, total)); }

RT cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    DO(cuDeviceGetDefaultMemPool((CUmemoryPool *)pool, device));
}

RT cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    DO(cuMemPoolGetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value));
}

RT cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    DO(cuMemPoolSetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value));
}

RT cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count)
{
    DO(cuMemPoolSetAccess((CUmemoryPool)pool, (const CUmemAccessDesc *)list, count));
}

RT cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) { DO(cuMemPoolTrimTo((CUmemoryPool)pool, keep)); }

RT cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    unsigned type = 0, managed = 0;
    BEGIN();
    memset(attributes, 0, sizeof *attributes);
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)ptr) != CUDA_SUCCESS) {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = -2;
        attributes->hostPointer = (void *)ptr;
        return cudaSuccess;
    }
    cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, (CUdeviceptr)ptr);
    cuPointerGetAttribute(&attributes->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)ptr);
    attributes->type = managed                      ? cudaMemoryTypeManaged
                       : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeDevice;
    attributes->devicePointer = (void *)ptr;
    attributes->hostPointer = attributes->type == cudaMemoryTypeDevice ? NULL : (void *)ptr;
    return cudaSuccess;
}

RT cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
    BEGIN();
    switch (kind) {
    case cudaMemcpyHostToDevice: return done(cuMemcpyHtoD((CUdeviceptr)to, from, n));
    case cudaMemcpyDeviceToHost: return done(cuMemcpyDtoH(to, (CUdeviceptr)from, n));
    case cudaMemcpyDeviceToDevice: return done(cuMemcpyDtoD((CUdeviceptr)to, (CUdeviceptr)from, n));
    default: return done(cuMemcpy((CUdeviceptr)to, (CUdeviceptr)from, n));
    }
}

RT cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    BEGIN();
    switch (kind) {
    case cudaMemcpyHostToDevice: return done(cuMemcpyHtoDAsync((CUdeviceptr)to, from, n, stream));
    case cudaMemcpyDeviceToHost: return done(cuMemcpyDtoHAsync(to, (CUdeviceptr)from, n, stream));
    case cudaMemcpyDeviceToDevice: return done(cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, n, stream));
    default: return done(cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, n, stream));
    }
}

RT cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n, cudaStream_t stream)
{
    (void)to_device, (void)from_device;
    DO(cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, n, stream));
}

RT cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                     enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUDA_MEMCPY2D p = {.dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = (CUdeviceptr)to, .dstPitch = to_pitch,
                       .srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = (CUdeviceptr)from, .srcPitch = from_pitch,
                       .WidthInBytes = width, .Height = height};
    (void)kind;
    DO(cuMemcpy2DAsync(&p, stream));
}

RT cudaMemset(void *to, int value, size_t n) { DO(cuMemsetD8((CUdeviceptr)to, (unsigned char)value, n)); }

RT cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t stream)
{
    DO(cuMemsetD8Async((CUdeviceptr)to, (unsigned char)value, n, stream));
}

RT cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    DO(cuStreamCreateWithPriority(stream, flags, priority));
}

RT cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { DO(cuStreamCreate(stream, flags)); }
RT cudaStreamCreate(cudaStream_t *stream) { DO(cuStreamCreate(stream, 0)); }
RT cudaStreamDestroy(cudaStream_t stream) { DO(cuStreamDestroy(stream)); }
RT cudaStreamQuery(cudaStream_t stream) { DO(cuStreamQuery(stream)); }
RT cudaStreamSynchronize(cudaStream_t stream) { DO(cuStreamSynchronize(stream)); }
RT cudaStreamGetPriority(cudaStream_t stream, int *priority) { DO(cuStreamGetPriority(stream, priority)); }
RT cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned f) { DO(cuStreamWaitEvent(stream, event, f)); }

RT cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *user, unsigned flags)
{
    DO(cuStreamAddCallback(stream, (CUstreamCallback)callback, user, flags));
}

RT cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    DO(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

RT cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *deps,
                                 const cudaGraphEdgeData *data, size_t ndeps, enum cudaStreamCaptureMode mode)
{
    DO(cuStreamBeginCaptureToGraph(stream, graph, deps, (const CUgraphEdgeData *)data, ndeps, (CUstreamCaptureMode)mode));
}

RT cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) { DO(cuStreamEndCapture(stream, graph)); }

RT cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    DO(cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}

RT cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                            cudaGraph_t *graph, const cudaGraphNode_t **deps, const cudaGraphEdgeData **edges,
                            size_t *ndeps)
{
    DO(cuStreamGetCaptureInfo(stream, (CUstreamCaptureStatus *)status, (cuuint64_t *)id, graph, deps,
                              (const CUgraphEdgeData **)edges, ndeps));
}

RT cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *deps, const cudaGraphEdgeData *edges,
                                       size_t ndeps, unsigned flags)
{
    DO(cuStreamUpdateCaptureDependencies(stream, deps, (const CUgraphEdgeData *)edges, ndeps, flags));
}

RT cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    DO(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

RT cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { DO(cuEventCreate(event, flags)); }
RT cudaEventCreate(cudaEvent_t *event) { DO(cuEventCreate(event, 0)); }
RT cudaEventDestroy(cudaEvent_t event) { DO(cuEventDestroy(event)); }
RT cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { DO(cuEventRecord(event, stream)); }
RT cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t s, unsigned f) { DO(cuEventRecordWithFlags(event, s, f)); }
RT cudaEventQuery(cudaEvent_t event) { DO(cuEventQuery(event)); }
RT cudaEventSynchronize(cudaEvent_t event) { DO(cuEventSynchronize(event)); }
RT cudaEventElapsedTime(float *ms, cudaEvent_t start_, cudaEvent_t end) { DO(cuEventElapsedTime(ms, start_, end)); }

RT cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    DO(cuGraphInstantiateWithFlags(exec, graph, flags));
}

RT cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) { DO(cuGraphGetNodes(graph, nodes, count)); }
RT cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) { DO(cuGraphLaunch(exec, stream)); }
RT cudaGraphDestroy(cudaGraph_t graph) { DO(cuGraphDestroy(graph)); }
RT cudaGraphExecDestroy(cudaGraphExec_t exec) { DO(cuGraphExecDestroy(exec)); }
RT cudaGraphDebugDotPrint(cudaGraph_t g, const char *path, unsigned flags) { DO(cuGraphDebugDotPrint(g, path, flags)); }
