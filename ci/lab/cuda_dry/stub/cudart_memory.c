/* Device memory: the host's, zeroed, a mapping of its own for each block. */
#include "cudart.h"

typedef struct { char *start; size_t size; int type; } Block;
static Block *blocks;
static size_t block_count, block_room;

static int take(void **pointer, size_t size, int type, const char *caller) {
    if (failure(caller)) return failure(caller);
    if (type == DEVICE && memory_now + (int64_t)size > (int64_t)(card()->memory_gib << 30)) return OUT_OF_MEMORY;
    /* a page of its own for each block; fresh pages are zero and take no memory until they are written */
    char *start = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    RECORD("alloc", caller, (int64_t)size, type);
    pthread_mutex_lock(&lock);
    if (block_count == block_room) {
        block_room = block_room ? 2 * block_room : 1024;
        blocks = realloc(blocks, block_room * sizeof *blocks);
    }
    blocks[block_count++] = (Block){start, size, type};
    if (type == DEVICE && (memory_now += (int64_t)size) > memory_peak) memory_peak = memory_now;
    pthread_mutex_unlock(&lock);
    return *pointer = start, SUCCESS;
}
static int give(void *pointer, const char *caller) {
    if (!pointer) return SUCCESS;
    Block found = {0};
    pthread_mutex_lock(&lock);
    for (size_t i = block_count; i-- > 0;)
        if (blocks[i].start == pointer) {
            found = blocks[i];
            blocks[i] = blocks[--block_count];
            break;
        }
    if (found.type == DEVICE) memory_now -= (int64_t)found.size;
    pthread_mutex_unlock(&lock);
    if (!found.start) return INVALID_VALUE;
    RECORD("free", caller, (int64_t)found.size, found.type);
    return munmap(pointer, found.size ? found.size : 1), SUCCESS;
}
int type_of(const void *pointer) {
    int type = UNREGISTERED;
    pthread_mutex_lock(&lock);
    for (size_t i = block_count; i-- > 0 && !type;)
        if ((const char *)pointer >= blocks[i].start && (const char *)pointer < blocks[i].start + blocks[i].size)
            type = blocks[i].type;
    pthread_mutex_unlock(&lock);
    return type;
}
int cudaMalloc(void **pointer, size_t size) { return take(pointer, size, DEVICE, "cudaMalloc"); }
int cudaMallocFromPoolAsync(void **pointer, size_t size, void *pool, void *stream) {
    (void)pool, (void)stream;
    return take(pointer, size, DEVICE, "cudaMallocFromPoolAsync");
}
int cudaMallocHost(void **pointer, size_t size) { return take(pointer, size, HOST, "cudaMallocHost"); }
int cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    (void)flags;
    return take(pointer, size, HOST, "cudaHostAlloc");
}
/* for the provider's options gpu_external_*: every tensor is a block of its own, where an arena would hide them */
void *dryrun_alloc(size_t size) {
    void *pointer = NULL;
    return take(&pointer, size, DEVICE, "tensor") ? NULL : pointer;
}
void dryrun_free(void *pointer) { give(pointer, "tensor"); }
void dryrun_empty_cache(void) {}

int cudaFree(void *pointer) { return give(pointer, "cudaFree"); }
int cudaFreeAsync(void *pointer, void *stream) { return (void)stream, give(pointer, "cudaFreeAsync"); }
int cudaFreeHost(void *pointer) { return give(pointer, "cudaFreeHost"); }
int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *total = card()->memory_gib << 30;
    *free_bytes = *total - (size_t)memory_now;
    return SUCCESS;
}
int cudaMemPoolCreate(void **pool) { return *pool = calloc(1, 64), SUCCESS; }
int cudaMemPoolDestroy(void *pool) { return free(pool), SUCCESS; }
int cudaMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) {
    (void)pool, (void)attribute;
    return *value = (uint64_t)memory_now, SUCCESS;
}
int cudaPointerGetAttributes(void *attributes, const void *pointer) {
    struct { int type, device; const void *on_device, *on_host; long reserved[8]; } *out = attributes;
    memset(out, 0, sizeof *out);
    out->type = type_of(pointer);
    out->device = out->type == DEVICE ? 0 : -1;
    out->on_device = out->type ? pointer : NULL;
    out->on_host = out->type == DEVICE ? NULL : pointer;
    return SUCCESS;
}
