/* A CUDA driver with nothing behind it: what its files share.
 *
 * A stand-in for libcuda.so.1, written from the public header cuda.h alone. With ../runtime and ../maths, likewise from
 * public headers, it lets the unmodified CUDA build of PyTorch, Triton and our extension run all of their host-side code
 * on a machine without a GPU. NVIDIA's own runtime does not start on it: it asks cuGetExportTable for undocumented
 * functions.
 *
 *   - device memory is zero-filled host memory, kept in a table, so that device, pinned and pageable pointers differ;
 *   - copies and memsets happen at once, and their bounds are checked;
 *   - kernel launches check their configuration and do nothing else: numbers computed on the "device" are garbage;
 *   - streams and events are always complete. Between two events every operation took a millisecond: benchmarks end soon
 *     (they repeat until 100 ms have passed) and choose the same among equals in every run and on every device;
 *   - stream capture obeys its protocol: the state is per stream, forks and joins go through events, forbidden calls fail
 *     and invalidate the capture, an unjoined stream is an error, launches become nodes, and launching a graph repeats
 *     its copies, memsets and host functions.
 *
 * Environment: HOLLOW_DEVICES      number of devices (2)
 *              HOLLOW_MEMORY       bytes per device (40 GiB; pages cost nothing until they are written)
 *              HOLLOW_LOG=1        names each entry point that was called but is not implemented (it fails with
 *                                  CUDA_ERROR_NOT_SUPPORTED); =2 also each refused call; =3 traces every call
 *              HOLLOW_STATS=PATH   counts as JSON at exit, in PATH.<process id>.json
 *
 * Linux on x86-64 only: the trampolines that carry the names of entry points are machine code.
 */
#ifndef HOLLOW_H
#define HOLLOW_H
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) CUresult CUDAAPI
#define MAX_DEVICES 16
#define SHARED_DEFAULT (48 << 10)  /* bytes of shared memory a kernel may use without asking */
#define SHARED_OPTIN (163 << 10)   /* bytes it may ask for */
#define NEED(condition) do { if (!(condition)) return refuse(__func__, CUDA_ERROR_INVALID_VALUE, #condition); } while (0)
#define TRY(call) do { CUresult result_ = (call); if (result_ != CUDA_SUCCESS) return result_; } while (0)
#define DEVICE(dev) do { if ((dev) < 0 || (dev) >= devices) \
    return refuse(__func__, CUDA_ERROR_INVALID_DEVICE, "no such device"); } while (0)
#define CONTEXT(ctx) do { if (!(ctx)) return refuse(__func__, CUDA_ERROR_INVALID_CONTEXT, "no context"); } while (0)
#define STREAM(stream) do { stream = resolve(stream); CONTEXT(stream); } while (0)

/* ------------------------------------------------------------------------------------------------ objects */

struct capture;

struct CUstream_st {
    CUcontext ctx;
    unsigned flags;
    int priority;
    unsigned long long id;
    struct capture *capture;  /* NULL when not capturing */
    CUgraphNode *deps;        /* what the next captured operation depends on */
    size_t ndeps;
    CUstream next;            /* list of all streams */
};

struct CUctx_st {
    int dev;
    unsigned flags;
    bool primary;
    int retained;
    unsigned long long id;
    struct CUstream_st legacy, per_thread;
    size_t limits[CU_LIMIT_MAX];
};

struct CUevent_st {
    CUcontext ctx;
    unsigned flags;
    bool recorded;
    double milliseconds;
    struct capture *capture;  /* the capture in which it was last recorded, if any */
    CUgraphNode *deps;
    size_t ndeps;
};

struct CUgraphNode_st {
    CUgraph graph;
    CUgraphNodeType type;
    CUgraphNode *deps;
    size_t ndeps;
    bool reached;
    void (*run)(const struct CUgraphNode_st *);  /* what a launch of the graph does for this node; NULL for nothing */
    void *dst, *src;
    size_t pitch_dst, pitch_src, width, height;
    unsigned value, element;
    CUhostFn fn;
    void *user;
    CUgraph child;
};

struct CUgraph_st {
    CUgraphNode *nodes;
    size_t count, room;
};

struct CUgraphExec_st {
    struct CUgraphNode_st *nodes;  /* copies: the graph may be destroyed */
    size_t count;
    unsigned long long flags;
};

struct capture {  /* never freed: events may refer to it for as long as they live, and there are few */
    CUgraph graph;
    CUstream origin;
    CUstreamCaptureMode mode;
    unsigned long long id;
    pthread_t thread;
    bool active, invalid, owns_graph;
    struct capture *next;
};

struct CUfunc_st {  /* also CUkern_st: a kernel handle may be passed where a function is expected */
    char *name;
    CUmodule module;
    int max_dynamic, carveout, cluster;
    struct CUfunc_st *next;
};

struct global {
    char *name;
    int dev;
    CUdeviceptr ptr;
    struct global *next;
};

struct CUmod_st {  /* also CUlib_st */
    int dev;  /* -1 for a library */
    struct CUfunc_st *functions;
    struct global *globals;
};

struct CUmemPoolHandle_st {
    int dev;
    cuuint64_t attributes[32];
};

struct allocation {
    uintptr_t base;
    size_t size;
    CUmemorytype type;
    bool owned;  /* mapped by us, so unmapped by us */
    int dev;
    unsigned flags;
    unsigned long long id;
};

struct physical {  /* what cuMemCreate returns */
    size_t size;
    CUmemAllocationProp prop;
};

/* ------------------------------------------------------------------------------------------------ state (state.c) */

/* Why a call was refused to a capture: what a report wants to tell apart. */
enum forbidden { FORBIDDEN_SYNC, FORBIDDEN_PAGEABLE, FORBIDDEN_OTHER, FORBIDDEN_KINDS };

struct stats {  /* of one device */
    unsigned long long launches;          /* of kernels, captured ones included */
    unsigned long long captures, failed_captures, empty_captures;
    unsigned long long nodes;             /* captured */
    unsigned long long graphs, graph_launches, empty_graph_launches;
    unsigned long long forbidden[FORBIDDEN_KINDS];  /* calls that invalidated a capture */
    unsigned long long copies, copied_bytes, memsets, waits;
    unsigned long long replayed;          /* nodes of launched graphs */
    size_t used, peak;                    /* bytes of device memory */
};

extern pthread_mutex_t lock;  /* recursive; guards everything below and every list */
extern bool initialised;
extern int devices, log_level;
extern size_t device_memory;
extern unsigned long long serial;
extern struct stats stats[MAX_DEVICES];
extern const int attributes[CU_DEVICE_ATTRIBUTE_MAX];
extern struct CUctx_st primary[MAX_DEVICES];
extern CUstream all_streams;

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
CUresult refuse(const char *where, CUresult error, const char *why);
void new_stream(CUstream stream, CUcontext ctx, unsigned flags, int priority);
void new_context(CUcontext ctx, int dev, bool is_primary);
CUcontext current(void);  /* device.c */

/* capture.c */
CUresult invalidate(struct capture *capture, enum forbidden kind, const char *where, CUresult error, const char *why);
CUresult unsafe(enum forbidden kind, const char *where);  /* calls that a capture forbids to the threads concerned */
CUstream resolve(CUstream stream);
void set_deps(CUgraphNode **deps, size_t *ndeps, const CUgraphNode *from, size_t count);
void add_deps(CUgraphNode **deps, size_t *ndeps, const CUgraphNode *from, size_t count);
CUgraphNode add_node(CUgraph graph, CUgraphNodeType type, const CUgraphNode *deps, size_t ndeps);
CUresult enter(const char *where, CUstream stream, CUgraphNodeType type, CUgraphNode *node);

/* memory.c */
struct allocation *find(uintptr_t ptr);  /* under the lock: the table may move */
void keep(struct allocation entry);
CUresult drop(const char *where, uintptr_t base, bool host);
CUresult allocate(uintptr_t *ptr, size_t size, CUmemorytype type, int dev, unsigned flags);

#endif
