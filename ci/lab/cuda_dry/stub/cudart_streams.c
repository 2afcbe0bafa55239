/* Streams, events and the capture of CUDA graphs. */
#include "cudart.h"

int cudaStreamCreate(void **stream) { return *stream = calloc(1, 64), SUCCESS; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return (void)flags, cudaStreamCreate(stream); }
int cudaStreamDestroy(void *stream) { return free(stream), SUCCESS; }
int cudaStreamSynchronize(void *stream) { return (void)stream, synchronize("cudaStreamSynchronize"); }
int cudaDeviceSynchronize(void) { return synchronize("cudaDeviceSynchronize"); }
int cudaEventSynchronize(void *event) { return (void)event, synchronize("cudaEventSynchronize"); }
int cudaEventCreate(void **event) { return *event = calloc(1, 64), SUCCESS; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return (void)flags, cudaEventCreate(event); }
int cudaEventDestroy(void *event) { return free(event), SUCCESS; }
int cudaEventElapsedTime(float *milliseconds) { return *milliseconds = 1, SUCCESS; }
int cudaEventRecord(void) { return SUCCESS; }
int cudaEventRecordWithFlags(void) { return SUCCESS; }
int cudaStreamWaitEvent(void) { return SUCCESS; }
int cudaStreamIsCapturing(void *stream, int *status) { return (void)stream, *status = capturing, SUCCESS; }
int cudaStreamBeginCapture(void) {
    RECORD("call", "cudaStreamBeginCapture", 0);
    return capturing = 1, SUCCESS;
}
int cudaStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    RECORD("call", "cudaStreamEndCapture", 0);
    capturing = 0;
    return *graph = calloc(1, 64), SUCCESS;
}
int cudaGraphInstantiate(void **executable) { return *executable = calloc(1, 64), SUCCESS; }
