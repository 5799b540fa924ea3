/* Stream capture. */
#include "hollow.h"

static struct capture *captures;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult invalidate(struct capture *capture, enum forbidden kind, const char *where, CUresult error, const char *why)
{
    if (!capture->invalid)  /* what follows from the first mistake is not counted again */
        stats[capture->origin->ctx->dev].forbidden[kind]++;
    capture->invalid = true;
    return refuse(where, error, why);
}

/* For calls that a capture forbids to the capturing thread (and, in global mode, to every thread). */
CUresult unsafe(enum forbidden kind, const char *where)
{
    CUresult result = CUDA_SUCCESS;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return result;
    pthread_mutex_lock(&lock);
    for (struct capture *c = captures; c; c = c->next) {
        if (!c->active || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            continue;
        bool mine = pthread_equal(c->thread, pthread_self());
        bool global = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (mine || global)
            result = invalidate(c, kind, where, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a capture is under way");
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUstream resolve(CUstream stream)
{
    CUcontext ctx = current();
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return ctx ? &ctx->legacy : NULL;
    if (stream == CU_STREAM_PER_THREAD)
        return ctx ? &ctx->per_thread : NULL;
    return stream;
}

void set_deps(CUgraphNode **deps, size_t *ndeps, const CUgraphNode *from, size_t count)
{
    CUgraphNode *copy = count ? malloc(count * sizeof *copy) : NULL;
    if (count)
        memcpy(copy, from, count * sizeof *copy);
    free(*deps);
    *deps = copy;
    *ndeps = count;
}

void add_deps(CUgraphNode **deps, size_t *ndeps, const CUgraphNode *from, size_t count)
{
    *deps = realloc(*deps, (*ndeps + count + 1) * sizeof **deps);
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (size_t j = 0; j < *ndeps; j++)
            known |= (*deps)[j] == from[i];
        if (!known)
            (*deps)[(*ndeps)++] = from[i];
    }
}

CUgraphNode add_node(CUgraph graph, CUgraphNodeType type, const CUgraphNode *deps, size_t ndeps)
{
    CUgraphNode node = calloc(1, sizeof *node);
    node->graph = graph;
    node->type = type;
    set_deps(&node->deps, &node->ndeps, deps, ndeps);
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
    }
    graph->nodes[graph->count++] = node;
    return node;
}

/* Enters an operation into a stream: *node is its node where the stream captures, NULL where it is to be done now. */
CUresult enter(const char *where, CUstream stream, CUgraphNodeType type, CUgraphNode *node)
{
    CUresult result = CUDA_SUCCESS;
    *node = NULL;
    if (!stream)
        return refuse(where, CUDA_ERROR_INVALID_CONTEXT, "no context");
    pthread_mutex_lock(&lock);
    if (stream->capture) {
        if (stream->capture->invalid) {
            result = refuse(where, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated");
        } else {
            *node = add_node(stream->capture->graph, type, stream->deps, stream->ndeps);
            set_deps(&stream->deps, &stream->ndeps, node, 1);
            stats[stream->capture->origin->ctx->dev].nodes++;
        }
    } else if (stream == &stream->ctx->legacy) {
        for (CUstream s = all_streams; s; s = s->next)
            if (s->capture && s->ctx == stream->ctx && !(s->flags & CU_STREAM_NON_BLOCKING))
                result = invalidate(s->capture, FORBIDDEN_OTHER, where, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "legacy stream");
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult begin_capture(CUstream stream, CUgraph graph, const CUgraphNode *deps, size_t ndeps,
                              CUstreamCaptureMode mode)
{
    stream = resolve(stream);
    CONTEXT(stream);
    if (stream == &stream->ctx->legacy)
        return refuse(__func__, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot capture");
    if (stream->capture)
        return refuse(__func__, CUDA_ERROR_ILLEGAL_STATE, "already capturing");
    struct capture *capture = calloc(1, sizeof *capture);
    pthread_mutex_lock(&lock);
    *capture = (struct capture){.graph = graph ? graph : calloc(1, sizeof *graph), .origin = stream, .mode = mode,
                                .id = serial++, .thread = pthread_self(), .active = true, .owns_graph = !graph,
                                .next = captures};
    captures = capture;
    stream->capture = capture;
    stats[stream->ctx->dev].captures++;
    set_deps(&stream->deps, &stream->ndeps, deps, ndeps);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

API cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    return begin_capture(stream, NULL, NULL, 0, mode);
}

API cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *data,
                                size_t ndeps, CUstreamCaptureMode mode)
{
    (void)data;
    NEED(graph);
    return begin_capture(stream, graph, deps, ndeps, mode);
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode old = thread_mode;
    NEED(mode);
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

static void reach(CUgraphNode node)
{
    if (node->reached)
        return;
    node->reached = true;
    for (size_t i = 0; i < node->ndeps; i++)
        reach(node->deps[i]);
}

API cuGraphDestroy(CUgraph graph)
{
    NEED(graph);
    for (size_t i = 0; i < graph->count; i++) {
        free(graph->nodes[i]->deps);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    free(graph);
    return CUDA_SUCCESS;
}

API cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    stream = resolve(stream);
    CONTEXT(stream);
    struct capture *capture = stream->capture;
    CUresult result = CUDA_SUCCESS;
    *graph = NULL;
    if (!capture)
        return refuse(__func__, CUDA_ERROR_ILLEGAL_STATE, "not capturing");
    if (capture->origin != stream)
        return refuse(__func__, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "not the stream that began");
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return refuse(__func__, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "not the thread that began");
    pthread_mutex_lock(&lock);
    if (capture->invalid)
        result = refuse(__func__, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated");
    for (size_t i = 0; i < stream->ndeps; i++)
        reach(stream->deps[i]);
    for (CUstream s = all_streams; s; s = s->next) {
        if (s->capture != capture)
            continue;
        for (size_t i = 0; i < s->ndeps && result == CUDA_SUCCESS; i++)
            if (!s->deps[i]->reached)
                result = refuse(__func__, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a stream was not joined");
        s->capture = NULL;
        set_deps(&s->deps, &s->ndeps, NULL, 0);
    }
    capture->active = false;
    stats[stream->ctx->dev].failed_captures += result != CUDA_SUCCESS;
    stats[stream->ctx->dev].empty_captures += result == CUDA_SUCCESS && !capture->graph->count;
    if (result == CUDA_SUCCESS)
        *graph = capture->graph;
    else if (capture->owns_graph)
        cuGraphDestroy(capture->graph);
    capture->graph = NULL;
    pthread_mutex_unlock(&lock);
    return result;
}

static CUstreamCaptureStatus capture_status(CUstream stream)
{
    return !stream->capture            ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* Asking for the state of the legacy stream is itself an error while a blocking stream captures. */
static CUresult ask_status(const char *where, CUstream stream, CUstreamCaptureStatus *status)
{
    if (!stream)
        return refuse(where, CUDA_ERROR_INVALID_CONTEXT, "no context");
    *status = capture_status(stream);
    if (stream == &stream->ctx->legacy)
        for (CUstream s = all_streams; s; s = s->next)
            if (s->capture && s->ctx == stream->ctx && !(s->flags & CU_STREAM_NON_BLOCKING))
                return refuse(where, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "legacy stream");
    return CUDA_SUCCESS;
}

API cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return ask_status(__func__, resolve(stream), status);
}

API cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **deps, size_t *ndeps)
{
    stream = resolve(stream);
    TRY(ask_status(__func__, stream, status));
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id)
        *id = stream->capture->id;
    if (graph)
        *graph = stream->capture->graph;
    if (deps)
        *deps = stream->deps;
    if (ndeps)
        *ndeps = stream->ndeps;
    return CUDA_SUCCESS;
}

API cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *ndeps)
{
    if (edges)
        *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, deps, ndeps);
}

API cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *deps, const CUgraphEdgeData *edges, size_t ndeps,
                                         unsigned int flags)
{
    (void)edges;
    stream = resolve(stream);
    CONTEXT(stream);
    if (!stream->capture || stream->capture->invalid)
        return refuse(__func__, CUDA_ERROR_ILLEGAL_STATE, "not capturing");
    pthread_mutex_lock(&lock);
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        set_deps(&stream->deps, &stream->ndeps, deps, ndeps);
    else
        add_deps(&stream->deps, &stream->ndeps, deps, ndeps);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
