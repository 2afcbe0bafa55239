/* What the device says about itself. */
#include "cudart.h"

/* cudaDeviceProp of CUDA 13, where it is read */
typedef struct {
    char name[256], uuid[16], luid[8];
    unsigned node_mask;
    size_t memory, shared_block;
    int registers_block, warp;
    size_t pitch;
    int threads_block, threads_dim[3], grid[3];
    size_t constant;
    int major, minor;
    size_t texture_alignment, texture_pitch;
    int processors, integrated, map_host, textures[39];
    size_t surface_alignment;
    int concurrent, ecc, pci_bus, pci_device, pci_domain, tcc, async_engines, unified, bus_width, l2, l2_persisting,
        threads_processor, priorities, l1_global, l1_local;
    size_t shared_processor;
    int registers_processor, managed, multi_board, multi_board_id, native_atomic, pageable, concurrent_managed,
        preemption, registered, cooperative;
    size_t shared_block_optin;
    int pageable_tables, direct_managed, blocks_processor, window;
    size_t shared_reserved;
    int host_register, sparse, register_read_only, semaphores, pools, rdma;
    unsigned rdma_flush;
    int rdma_order;
    unsigned pool_handles;
    int deferred, ipc_event, cluster, unified_functions, numa[4];
    unsigned pci_ids[2];
    int numa_multinode, reserved[56];
} DeviceProp;
_Static_assert(sizeof(DeviceProp) == DEVICE_PROP_SIZE && offsetof(DeviceProp, l2) == 596, "not the layout of CUDA 13");
_Static_assert(offsetof(DeviceProp, pools) == 720 && offsetof(DeviceProp, cluster) == 748, "not the layout of CUDA 13");

int cudaGetDeviceProperties(DeviceProp *prop, int device) {
    (void)device;
    const Card *c = card();
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "%s", c->name);
    prop->uuid[0] = 1;
    prop->memory = c->memory_gib << 30;
    prop->shared_block = 49152;
    prop->registers_block = prop->registers_processor = 65536;
    prop->warp = 32;
    prop->pitch = INT32_MAX;
    prop->threads_block = prop->threads_dim[0] = prop->threads_dim[1] = 1024;
    prop->threads_dim[2] = 64;
    prop->grid[0] = INT32_MAX;
    prop->grid[1] = prop->grid[2] = 65535;
    prop->constant = 65536;
    prop->major = c->compute / 10;
    prop->minor = c->compute % 10;
    prop->texture_alignment = prop->surface_alignment = 512;
    prop->texture_pitch = 32;
    prop->processors = c->processors;
    prop->map_host = prop->concurrent = prop->unified = prop->priorities = prop->managed = prop->cooperative = 1;
    prop->l1_global = prop->l1_local = prop->preemption = prop->concurrent_managed = prop->host_register = 1;
    prop->pools = 1;
    prop->async_engines = 3;
    prop->bus_width = 5120;
    prop->l2 = c->l2_mib << 20;
    prop->threads_processor = c->threads;
    prop->shared_processor = c->shared_processor;
    prop->shared_block_optin = c->shared_block_optin;
    prop->shared_reserved = 1024;
    prop->blocks_processor = c->blocks;
    prop->cluster = c->compute >= 90;
    return SUCCESS;
}
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    const Card *c = card();
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = INT32_MAX; break;
    case 6: case 7: *value = 65535; break;
    case 8: *value = 49152; break;
    case 9: *value = 65536; break;
    case 10: *value = 32; break;
    case 12: case 82: *value = 65536; break;
    case 13: *value = 1700000; break;
    case 14: *value = 512; break;
    case 16: *value = c->processors; break;
    case 38: *value = c->l2_mib << 20; break;
    case 39: *value = c->threads; break;
    case 75: *value = c->compute / 10; break;
    case 76: *value = c->compute % 10; break;
    case 81: *value = (int)c->shared_processor; break;
    case 97: *value = (int)c->shared_block_optin; break;
    case 106: *value = c->blocks; break;
    case 111: *value = 1024; break;
    case 19: case 31: case 41: case 78: case 79: case 80: case 83: case 89: case 90: case 95: case 115:
        *value = 1; break;
    case 120: *value = c->compute >= 90; break;
    default: *value = 0;
    }
    return SUCCESS;
}
int cudaGetDeviceCount(int *count) { return *count = 1, SUCCESS; }
int cudaGetDevice(int *device) { return *device = 0, SUCCESS; }
int cudaSetDevice(int device) {
    int error = failure("cudaSetDevice");
    return error ? error : device ? 101 : SUCCESS;
}
int cudaRuntimeGetVersion(int *version) { return *version = 13000, SUCCESS; }
int cudaDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
int cudaGetLastError(void) { return SUCCESS; }
int cudaPeekAtLastError(void) { return SUCCESS; }
const char *cudaGetErrorName(int error) {
    return error == CAPTURE_UNSUPPORTED ? "cudaErrorStreamCaptureUnsupported" : error ? "cudaError" : "cudaSuccess";
}
/* CUDA's own words for those that DRYRUN_FAIL is used with */
const char *cudaGetErrorString(int error) {
    switch (error) {
    case OUT_OF_MEMORY: return "out of memory";
    case 35: return "CUDA driver version is insufficient for CUDA runtime version";
    case 46: return "CUDA-capable device(s) is/are busy or unavailable";
    case 100: return "no CUDA-capable device is detected";
    case CAPTURE_UNSUPPORTED: return "operation not permitted when stream is capturing";
    default: return "dry run";
    }
}
