/* Streams and events. */
#include "hollow.h"

API cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    CONTEXT(current());
    *stream = malloc(sizeof **stream);
    pthread_mutex_lock(&lock);
    new_stream(*stream, current(), flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *stream, unsigned int flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

API cuStreamDestroy(CUstream stream)
{
    NEED(stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD);
    pthread_mutex_lock(&lock);
    if (stream->capture)
        invalidate(stream->capture, FORBIDDEN_OTHER, __func__, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "destroyed");
    for (CUstream *s = &all_streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = stream->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(stream->deps);
    free(stream);
    return CUDA_SUCCESS;
}

API cuStreamGetPriority(CUstream stream, int *priority)
{
    STREAM(stream);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API cuStreamGetDevice(CUstream stream, CUdevice *dev)
{
    STREAM(stream);
    *dev = stream->ctx->dev;
    return CUDA_SUCCESS;
}

API cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
    STREAM(stream);
    *ctx = stream->ctx;
    return CUDA_SUCCESS;
}

API cuStreamGetCtx_v2(CUstream stream, CUcontext *ctx, CUgreenCtx *green)
{
    STREAM(stream);
    *ctx = stream->ctx;
    if (green)
        *green = NULL;
    return CUDA_SUCCESS;
}

static CUresult wait_for(const char *where, CUstream stream)
{
    CUgraphNode none;
    if (stream->capture)
        return invalidate(stream->capture, FORBIDDEN_SYNC, where, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the stream captures");
    stats[stream->ctx->dev].waits++;
    if (stream == &stream->ctx->legacy)
        return enter(where, stream, CU_GRAPH_NODE_TYPE_EMPTY, &none);
    return CUDA_SUCCESS;
}

API cuStreamQuery(CUstream stream)
{
    STREAM(stream);
    return wait_for(__func__, stream);
}

API cuStreamSynchronize(CUstream stream)
{
    STREAM(stream);
    TRY(wait_for(__func__, stream));
    return unsafe(FORBIDDEN_SYNC, __func__);
}

static CUresult wait_context(const char *where, CUcontext ctx)
{
    if (!ctx)
        return refuse(where, CUDA_ERROR_INVALID_CONTEXT, "no context");
    for (CUstream s = all_streams; s; s = s->next)
        if (s->capture && s->ctx == ctx)
            return invalidate(s->capture, FORBIDDEN_SYNC, where, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream captures");
    stats[ctx->dev].waits++;
    return unsafe(FORBIDDEN_SYNC, where);
}

API cuCtxSynchronize(void) { return wait_context(__func__, current()); }
API cuCtxSynchronize_v2(CUcontext ctx) { return wait_context(__func__, ctx ? ctx : current()); }

static void run_host(const struct CUgraphNode_st *node) { node->fn(node->user); }

API cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *user)
{
    CUgraphNode node;
    STREAM(stream);
    TRY(enter(__func__, stream, CU_GRAPH_NODE_TYPE_HOST, &node));
    if (node)
        node->run = run_host, node->fn = fn, node->user = user;
    else
        fn(user);
    return CUDA_SUCCESS;
}

API cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *user, unsigned int flags)
{
    CUstream handle = stream;
    (void)flags;
    STREAM(stream);
    if (stream->capture)
        return invalidate(stream->capture, FORBIDDEN_OTHER, __func__, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                          "the stream captures");
    callback(handle, CUDA_SUCCESS, user);
    return CUDA_SUCCESS;
}

API cuEventCreate(CUevent *event, unsigned int flags)
{
    CONTEXT(current());
    *event = calloc(1, sizeof **event);
    (*event)->ctx = current();
    (*event)->flags = flags;
    return CUDA_SUCCESS;
}

API cuEventDestroy(CUevent event)
{
    if (!event)
        return refuse(__func__, CUDA_ERROR_INVALID_HANDLE, "no event");
    free(event->deps);
    free(event);
    return CUDA_SUCCESS;
}

static double operations(int dev)
{
    const struct stats *s = &stats[dev];
    return (double)(s->launches + s->copies + s->memsets + s->replayed);
}

API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    STREAM(stream);
    if (!event || event->ctx != stream->ctx)
        return refuse(__func__, CUDA_ERROR_INVALID_HANDLE, "event and stream of different devices");
    if (stream->capture && stream->capture->invalid)
        return refuse(__func__, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated");
    pthread_mutex_lock(&lock);
    if (stream->capture && flags & CU_EVENT_RECORD_EXTERNAL) {
        CUgraphNode node = add_node(stream->capture->graph, CU_GRAPH_NODE_TYPE_EVENT_RECORD, stream->deps, stream->ndeps);
        set_deps(&stream->deps, &stream->ndeps, &node, 1);
    } else {
        event->capture = stream->capture;
        set_deps(&event->deps, &event->ndeps, stream->deps, stream->capture ? stream->ndeps : 0);
    }
    pthread_mutex_unlock(&lock);
    event->milliseconds = operations(stream->ctx->dev);
    event->recorded = true;
    return CUDA_SUCCESS;
}

API cuEventRecord(CUevent event, CUstream stream) { return cuEventRecordWithFlags(event, stream, 0); }

API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    CUresult result = CUDA_SUCCESS;
    STREAM(stream);
    if (!event)
        return refuse(__func__, CUDA_ERROR_INVALID_HANDLE, "no event");
    pthread_mutex_lock(&lock);
    struct capture *theirs = event->capture && event->capture->active ? event->capture : NULL;
    if (stream->capture && flags & CU_EVENT_WAIT_EXTERNAL) {
        CUgraphNode node = add_node(stream->capture->graph, CU_GRAPH_NODE_TYPE_WAIT_EVENT, stream->deps, stream->ndeps);
        set_deps(&stream->deps, &stream->ndeps, &node, 1);
    } else if (theirs && theirs->invalid) {
        result = refuse(__func__, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated");
    } else if (theirs && stream->capture && stream->capture != theirs) {
        result = invalidate(theirs, FORBIDDEN_OTHER, __func__, CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would merge");
    } else if (theirs && stream == &stream->ctx->legacy) {
        result = invalidate(theirs, FORBIDDEN_OTHER, __func__, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                            "the legacy stream cannot capture");
    } else if (theirs) {  /* the stream joins the capture */
        stream->capture = theirs;
        add_deps(&stream->deps, &stream->ndeps, event->deps, event->ndeps);
    } else if (stream->capture && event->recorded) {
        result = invalidate(stream->capture, FORBIDDEN_OTHER, __func__, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                            "event outside the capture");
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult look_at(enum forbidden kind, const char *where, CUevent event)
{
    if (!event)
        return refuse(where, CUDA_ERROR_INVALID_HANDLE, "no event");
    if (event->capture && event->capture->active)
        return invalidate(event->capture, kind, where, CUDA_ERROR_CAPTURED_EVENT, "recorded in a capture under way");
    return unsafe(kind, where);
}

API cuEventQuery(CUevent event) { return look_at(FORBIDDEN_OTHER, __func__, event); }

API cuEventSynchronize(CUevent event)
{
    TRY(look_at(FORBIDDEN_SYNC, __func__, event));
    stats[event->ctx->dev].waits++;
    return CUDA_SUCCESS;
}

API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    NEED(milliseconds);
    if (!start || !end || !start->recorded || !end->recorded || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return refuse(__func__, CUDA_ERROR_INVALID_HANDLE, "not recorded, or made without timing");
    *milliseconds = (float)(end->milliseconds - start->milliseconds) + 1e-3f;  /* never 0: callers divide by it */
    return CUDA_SUCCESS;
}
