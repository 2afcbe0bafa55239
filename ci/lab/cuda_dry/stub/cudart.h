/* What the parts of the stand-in of libcudart share. */
#include "record.h"
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#define PRIVATE __attribute__((visibility("hidden")))

typedef struct { unsigned x, y, z; } dim3;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_SYMBOL = 13, CAPTURE_UNSUPPORTED = 900 };
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT_DIRECTION };
enum { UNREGISTERED, HOST, DEVICE };

typedef struct {
    int compute;
    const char *name;
    int processors, threads, blocks, l2_mib;
    size_t shared_block_optin, shared_processor, memory_gib;
} Card;

/* the card that DRYRUN_COMPUTE names by its compute capability, 90 without it */
PRIVATE const Card *card(void);
PRIVATE extern pthread_mutex_t lock;
PRIVATE extern int64_t memory_now, memory_peak;
/* a CUDA graph is being recorded, during which nothing may wait */
PRIVATE extern int capturing;
PRIVATE int type_of(const void *pointer);
PRIVATE int synchronize(const char *caller);
/* the error that DRYRUN_FAIL (FUNCTION:CODE) wants of a function, else 0: a full card, an old driver, one that is held */
PRIVATE int failure(const char *function);
