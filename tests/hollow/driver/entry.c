/* Entry points by name. */
#include "hollow.h"
#include <dlfcn.h>

/* Names of which more than one version is in use: the newest that the caller knows is the one it gets. */
static const struct { const char *name; int since; const char *symbol; } versions[] = {
    {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
    {"cuCtxGetDevice", 0, "cuCtxGetDevice"},
    {"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"},
    {"cuCtxSynchronize", 0, "cuCtxSynchronize"},
    {"cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"},
    {"cuStreamGetCtx", 0, "cuStreamGetCtx"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 0, "cuStreamGetCaptureInfo_v2"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuGraphInstantiate", 0, "cuGraphInstantiate_v2"},
    {"cuStreamUpdateCaptureDependencies", 12030, "cuStreamUpdateCaptureDependencies_v2"},
    {"cuStreamUpdateCaptureDependencies", 0, NULL},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 0, "cuGetProcAddress"},
};

static void *implementation(const char *name, int version)
{
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
        if (!strcmp(name, versions[i].name) && version >= versions[i].since)
            return versions[i].symbol ? dlsym(RTLD_DEFAULT, versions[i].symbol) : NULL;
    static void *self;
    if (!self) {
        Dl_info info;
        dladdr((void *)implementation, &info);
        self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    for (int i = 0; i < 4; i++) {
        char symbol[128];
        snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
        void *found = dlsym(self, symbol);
        if (found)
            return found;
    }
    return NULL;
}

/* What is handed out is a few bytes of code that carry a record: the name for the trace, the function to go on to. */
struct entry { char *name; void *target; bool called; int version; struct entry *next; void *code; };

CUresult hollow_missing(void);
CUresult hollow_missing(void) { return CUDA_ERROR_NOT_SUPPORTED; }

void *hollow_trace(struct entry *entry);
void *hollow_trace(struct entry *entry)
{
    if (log_level >= 3)
        say("%s", entry->name);
    if (!entry->called && entry->target == (void *)hollow_missing && log_level >= 1)
        say("%s (version %d) is not implemented", entry->name, entry->version);
    entry->called = true;
    return entry->target;
}

/* r11 holds the record: keep the argument registers, ask hollow_trace where to go, go there. */
void hollow_step(void);
__asm__(".text\n.globl hollow_step\n.hidden hollow_step\n.type hollow_step, @function\nhollow_step:\n"
        "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\npush %rbp\n"
        "mov %r11, %rdi\ncall hollow_trace@PLT\nmov %rax, %r11\n"
        "pop %rbp\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\njmp *%r11\n"
        ".size hollow_step, .-hollow_step\n");

static void *trampoline(const char *name, int version)
{
    static struct entry *entries;
    static unsigned char *page, *end;
    struct entry *entry;
    void *target = implementation(name, version);
    if (target && log_level < 3)
        return target;
    if (!target)
        target = (void *)hollow_missing;
    pthread_mutex_lock(&lock);
    for (entry = entries; entry && (strcmp(entry->name, name) || entry->target != target); entry = entry->next)
        ;
    if (!entry) {
        if (end - page < 32) {
            page = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            end = page + (1 << 16);
        }
        entry = calloc(1, sizeof *entry);
        *entry = (struct entry){.name = strdup(name), .target = target, .version = version, .next = entries, .code = page};
        void *step = (void *)hollow_step;
        memcpy(page, "\x49\xbb", 2);             /* movabs $entry, %r11 */
        memcpy(page + 2, &entry, 8);
        memcpy(page + 10, "\x48\xb8", 2);        /* movabs $hollow_step, %rax */
        memcpy(page + 12, &step, 8);
        memcpy(page + 20, "\xff\xe0", 2);        /* jmp *%rax */
        page += 32;
        entries = entry;
    }
    pthread_mutex_unlock(&lock);
    return entry->code;
}

API cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    (void)flags;
    NEED(name && function);
    *function = trampoline(name, version);
    if (status)
        *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

#undef cuGetProcAddress
API cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags);
API cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* Tables of undocumented functions, which NVIDIA's own runtime library asks for: there are none here, and what they hold
 * is not public. That library therefore does not start on this driver; hollow_rt.c takes its place. */
API cuGetExportTable(const void **table, const CUuuid *id)
{
    NEED(table && id);
    *table = NULL;
    return refuse(__func__, CUDA_ERROR_NOT_FOUND, "undocumented table");
}
