/* The driver: kernels that the provider carries as binaries, TensorRT's attention among them; found by name, not linked. */
#include "record.h"

int cuTensorMapEncodeTiled(void *map) { return memset(map, 0, 128), 0; }
int cuGetErrorName(int error, const char **name) { return *name = "CUDA", 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int cudaDeviceGetAttribute(int *, int, int);
    return cudaDeviceGetAttribute(value, attribute, device);
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void *function, int config) { return 0; }
int cuModuleLoadData(void **module) { return *module = calloc(1, 64), 0; }
int cuModuleUnload(void *module) { return free(module), 0; }
int cuModuleGetFunction(const char **function, void *module, const char *name) { return *function = strdup(name), 0; }
int cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) { return *state = calloc(1, 64), 0; }
int cuLinkAddFile_v2(void *state) { return 0; }
int cuLinkAddData_v2(void *state) { return 0; }
int cuLinkComplete(void *state, void **cubin, size_t *size) { return *cubin = state, *size = 64, 0; }
int cuLinkDestroy(void *state) { return 0; }
int cuLaunchKernel(const char *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared) {
    RECORD("launch", function, gx, gy, gz, bx, by, bz, shared);
    return 0;
}
int cuLaunchCooperativeKernel(const char *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared);
}
