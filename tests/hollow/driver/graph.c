/* Kernel launches and graphs. */
#include "hollow.h"

static CUresult launch(const char *where, CUfunction function, const unsigned grid[3], const unsigned block[3],
                       size_t shared, CUstream stream, bool cooperative)
{
    CUgraphNode node;
    if (!function)
        return refuse(where, CUDA_ERROR_INVALID_HANDLE, "no function");
    if (!stream)
        return refuse(where, CUDA_ERROR_INVALID_CONTEXT, "no context");
    bool good = (unsigned long long)block[0] * block[1] * block[2] - 1 < 1024 && block[2] <= 64 && grid[0] && grid[1] &&
                grid[2] && grid[0] <= 2147483647u && grid[1] <= 65535 && grid[2] <= 65535;
    if (!good || shared > (size_t)function->max_dynamic) {
        if (log_level >= 2)
            say("%s of %s: grid %u %u %u, block %u %u %u, %zu bytes of %d", where, function->name, grid[0], grid[1],
                grid[2], block[0], block[1], block[2], shared, function->max_dynamic);
        return refuse(where, CUDA_ERROR_INVALID_VALUE, "launch configuration");
    }
    if (cooperative) {
        int blocks = 0;
        cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, (int)(block[0] * block[1] * block[2]), shared);
        if ((unsigned long long)grid[0] * grid[1] * grid[2] >
            (unsigned long long)blocks * attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT])
            return refuse(where, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, function->name);
    }
    if (function->module->dev >= 0 && function->module->dev != stream->ctx->dev)
        return refuse(where, CUDA_ERROR_INVALID_HANDLE, "function and stream of different devices");
    TRY(enter(where, stream, CU_GRAPH_NODE_TYPE_KERNEL, &node));
    stats[stream->ctx->dev].launches++;
    if (log_level >= 3)
        say("  kernel %.100s on device %d%s", function->name, stream->ctx->dev, node ? ", captured" : "");
    return CUDA_SUCCESS;
}

API cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                   unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra)
{
    (void)params, (void)extra;
    return launch(__func__, function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, resolve(stream), false);
}

API cuLaunchCooperativeKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                              unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params)
{
    (void)params;
    return launch(__func__, function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, resolve(stream), true);
}

API cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **extra)
{
    bool cooperative = false;
    (void)params, (void)extra;
    NEED(c);
    for (unsigned i = 0; i < c->numAttrs; i++)
        cooperative |= c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && c->attrs[i].value.cooperative;
    return launch(__func__, function, (unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ},
                  (unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, resolve(c->hStream),
                  cooperative);
}

API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    NEED(graph && count);
    if (nodes)
        for (size_t i = 0; i < *count; i++)
            nodes[i] = i < graph->count ? graph->nodes[i] : NULL;
    if (!nodes || *count > graph->count)
        *count = graph->count;
    return CUDA_SUCCESS;
}

API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    NEED(exec && graph);
    *exec = calloc(1, sizeof **exec);
    (*exec)->flags = flags;
    if (current())
        stats[current()->dev].graphs++;
    (*exec)->count = graph->count;
    (*exec)->nodes = calloc(graph->count + 1, sizeof *(*exec)->nodes);
    for (size_t i = 0; i < graph->count; i++)
        (*exec)->nodes[i] = *graph->nodes[i];
    return CUDA_SUCCESS;
}

API cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size)
{
    if (bad)
        *bad = NULL;
    if (log && size)
        *log = 0;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

API cuGraphExecDestroy(CUgraphExec exec)
{
    NEED(exec);
    free(exec->nodes);
    free(exec);
    return CUDA_SUCCESS;
}

API cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUgraphNode node;
    NEED(exec);
    STREAM(stream);
    TRY(enter(__func__, stream, CU_GRAPH_NODE_TYPE_GRAPH, &node));
    stats[stream->ctx->dev].graph_launches++;
    stats[stream->ctx->dev].replayed += exec->count;
    stats[stream->ctx->dev].empty_graph_launches += !exec->count;
    for (size_t i = 0; !node && i < exec->count; i++)
        if (exec->nodes[i].run)
            exec->nodes[i].run(&exec->nodes[i]);
    return CUDA_SUCCESS;
}

API cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
    (void)flags;
    FILE *file = graph ? fopen(path, "w") : NULL;
    NEED(file);
    fprintf(file, "digraph hollow {\n");
    for (size_t i = 0; i < graph->count; i++) {
        fprintf(file, "  n%p [label=\"type %d\"];\n", (void *)graph->nodes[i], graph->nodes[i]->type);
        for (size_t j = 0; j < graph->nodes[i]->ndeps; j++)
            fprintf(file, "  n%p -> n%p;\n", (void *)graph->nodes[i]->deps[j], (void *)graph->nodes[i]);
    }
    fprintf(file, "}\n");
    fclose(file);
    return CUDA_SUCCESS;
}
