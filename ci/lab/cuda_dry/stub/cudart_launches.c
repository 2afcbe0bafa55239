/* Kernels by the address of their stubs in the provider, and their launches. */
#include "cudart.h"

typedef struct { const void *host; const char *name; } Kernel;
static Kernel *kernels;
static size_t kernel_count, kernel_room;
static int kernels_sorted;

static int by_address(const void *a, const void *b) {
    const char *x = ((const Kernel *)a)->host, *y = ((const Kernel *)b)->host;
    return (x > y) - (x < y);
}
static const char *kernel_name(const void *host) {
    pthread_mutex_lock(&lock);
    if (!kernels_sorted) {
        qsort(kernels, kernel_count, sizeof *kernels, by_address);
        kernels_sorted = 1;
    }
    Kernel key = {host, NULL}, *found = bsearch(&key, kernels, kernel_count, sizeof key, by_address);
    pthread_mutex_unlock(&lock);
    return found ? found->name : "?";
}

void **__cudaRegisterFatBinary(void *binary) {
    void **handle = malloc(sizeof *handle);
    *handle = binary;
    return handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name) {
    (void)handle, (void)device;
    pthread_mutex_lock(&lock);
    if (kernel_count == kernel_room) {
        kernel_room = kernel_room ? 2 * kernel_room : 16384;
        kernels = realloc(kernels, kernel_room * sizeof *kernels);
    }
    kernels[kernel_count++] = (Kernel){host, name};
    kernels_sorted = 0;
    pthread_mutex_unlock(&lock);
}
void __cudaRegisterVar(void) {}

static int launch(const void *kernel, dim3 grid, dim3 block, size_t shared) {
    RECORD("launch", kernel_name(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z, (int64_t)shared);
    /* what a device refuses as well: cudaErrorInvalidConfiguration */
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return 9;
    if (grid.y > 65535 || grid.z > 65535 || (uint64_t)block.x * block.y * block.z > 1024) return 9;
    return shared > card()->shared_block_optin ? INVALID_VALUE : SUCCESS;
}

static __thread struct { dim3 grid, block; size_t shared; void *stream; } configuration[8];
static __thread int configurations;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    if (configurations < 8) {
        configuration[configurations].grid = grid;
        configuration[configurations].block = block;
        configuration[configurations].shared = shared;
        configuration[configurations].stream = stream;
    }
    configurations++;
    return 0;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) {
    if (!configurations) return 52; /* cudaErrorMissingConfiguration */
    configurations--;
    *grid = configuration[configurations].grid;
    *block = configuration[configurations].block;
    *shared = configuration[configurations].shared;
    *stream = configuration[configurations].stream;
    return SUCCESS;
}
int __cudaGetKernel(const void **kernel, const void *host) { return *kernel = host, SUCCESS; }
int __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
    (void)arguments, (void)stream;
    return launch(kernel, grid, block, shared);
}
int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
    (void)arguments, (void)stream;
    return launch(kernel, grid, block, shared);
}
int cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                void *stream) {
    (void)arguments, (void)stream;
    return launch(kernel, grid, block, shared);
}
typedef struct { dim3 grid, block; size_t shared; void *stream, *attributes; unsigned count; } LaunchConfig;
int cudaLaunchKernelExC(const LaunchConfig *config, const void *kernel, void **arguments) {
    (void)arguments;
    return launch(kernel, config->grid, config->block, config->shared);
}
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    (void)stream;
    RECORD("call", "cudaLaunchHostFunc", 0);
    return function(data), SUCCESS;
}

typedef struct {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, shared_dynamic, carveout, cluster[6], reserved[16];
} FuncAttributes;
int cudaFuncGetAttributes(FuncAttributes *attributes, const void *kernel) {
    (void)kernel;
    memset(attributes, 0, sizeof *attributes);
    attributes->threads = 1024;
    attributes->registers = 64;
    attributes->ptx = attributes->binary = card()->compute;
    attributes->shared_dynamic = 49152;
    return SUCCESS;
}
int cudaFuncSetAttribute(const void *kernel, int attribute, int value) {
    (void)kernel;
    enum { MAX_DYNAMIC_SHARED = 8 };
    return attribute == MAX_DYNAMIC_SHARED && (size_t)value > card()->shared_block_optin ? INVALID_VALUE : SUCCESS;
}
int cudaKernelSetAttributeForDevice(const void *kernel, int attribute, int value, int device) {
    (void)device;
    return cudaFuncSetAttribute(kernel, attribute, value);
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int threads,
                                                           size_t shared, unsigned flags) {
    (void)kernel, (void)flags;
    int by_threads = card()->threads / (threads > 0 ? threads : 1);
    int by_shared = (int)(card()->shared_processor / (shared + 1024));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > card()->blocks) *blocks = card()->blocks;
    return SUCCESS;
}
int cudaLibraryLoadData(void **library) { return *library = calloc(1, 64), SUCCESS; }
int cudaLibraryUnload(void *library) { return free(library), SUCCESS; }
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library;
    char *address = strdup(name);
    __cudaRegisterFunction(NULL, address, NULL, address);
    return *kernel = address, SUCCESS;
}
static int nothing(void) { return SUCCESS; }
int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                     int *status) {
    (void)symbol, (void)version, (void)flags;
    *function = (void *)nothing;
    if (status) *status = 0;
    return SUCCESS;
}
