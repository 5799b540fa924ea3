/* State, log, counts and the names of errors. */
#include "hollow.h"
#include <stdarg.h>

pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
bool initialised;
int devices = 2, log_level;
size_t device_memory = (size_t)40 << 30;
unsigned long long serial = 1;
struct stats stats[MAX_DEVICES];
struct CUctx_st primary[MAX_DEVICES];
CUstream all_streams;
static const char *stats_path;
static pid_t owner;  /* a forked child must not write its parent's counts */

void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "hollow[%d]: ", (int)getpid());
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

CUresult refuse(const char *where, CUresult error, const char *why)
{
    if (log_level >= 2)
        say("%s refused with %d: %s", where, error, why);
    return error;
}

static void write_stats(void)
{
    char path[4096];
    if (!initialised || getpid() != owner)
        return;
    snprintf(path, sizeof path, "%s.%d.json", stats_path, (int)owner);
    FILE *file = fopen(path, "w");
    if (!file) {
        say("%s cannot be written", path);
        return;
    }
    fprintf(file, "{\"devices\": [");
    for (int dev = 0; dev < devices; dev++) {
        const struct stats *s = &stats[dev];
        fprintf(file,
                "%s\n{\"launches\": %llu, \"captures\": %llu, \"failed_captures\": %llu, \"empty_captures\": %llu, "
                "\"nodes\": %llu, \"graphs\": %llu, \"graph_launches\": %llu, \"empty_graph_launches\": %llu, "
                "\"forbidden_syncs\": %llu, \"forbidden_pageable_copies\": %llu, \"forbidden_other\": %llu, "
                "\"copies\": %llu, \"copied_bytes\": %llu, \"memsets\": %llu, \"waits\": %llu, "
                "\"used_bytes\": %zu, \"peak_bytes\": %zu}",
                dev ? "," : "", s->launches, s->captures, s->failed_captures, s->empty_captures, s->nodes, s->graphs,
                s->graph_launches, s->empty_graph_launches, s->forbidden[FORBIDDEN_SYNC],
                s->forbidden[FORBIDDEN_PAGEABLE], s->forbidden[FORBIDDEN_OTHER], s->copies, s->copied_bytes, s->memsets,
                s->waits, s->used, s->peak);
    }
    fprintf(file, "\n]}\n");
    fclose(file);
}

void new_stream(CUstream stream, CUcontext ctx, unsigned flags, int priority)
{
    *stream = (struct CUstream_st){.ctx = ctx, .flags = flags, .priority = priority, .id = serial++, .next = all_streams};
    all_streams = stream;
}

void new_context(CUcontext ctx, int dev, bool is_primary)
{
    *ctx = (struct CUctx_st){.dev = dev, .primary = is_primary, .id = serial++};
    ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
    ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    ctx->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    ctx->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    ctx->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    new_stream(&ctx->legacy, ctx, 0, 0);
    new_stream(&ctx->per_thread, ctx, 0, 0);
}

static void __attribute__((constructor)) set_up(void)
{
    const char *value = getenv("HOLLOW_DEVICES");
    if (value)
        devices = atoi(value) < 0 ? 0 : atoi(value) > MAX_DEVICES ? MAX_DEVICES : atoi(value);
    if ((value = getenv("HOLLOW_MEMORY")))
        device_memory = strtoull(value, NULL, 0);
    if ((value = getenv("HOLLOW_LOG")))
        log_level = atoi(value);
    if ((stats_path = getenv("HOLLOW_STATS")))
        atexit(write_stats);
    owner = getpid();
    for (int dev = 0; dev < MAX_DEVICES; dev++)
        new_context(&primary[dev], dev, true);
}

API cuInit(unsigned int flags)
{
    NEED(flags == 0);
    initialised = true;
    return devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

API cuDriverGetVersion(int *version)
{
    NEED(version);
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

static const struct { CUresult code; const char *name, *text; } errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access already enabled"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
};

API cuGetErrorString(CUresult error, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error)
            return *text = errors[i].text, CUDA_SUCCESS;
    return *text = "unknown error", CUDA_SUCCESS;
}

API cuGetErrorName(CUresult error, const char **name)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error)
            return *name = errors[i].name, CUDA_SUCCESS;
    return *name = "CUDA_ERROR_UNKNOWN", CUDA_SUCCESS;
}
