/* What the stand-ins of CUDA's libraries share: every request is written down, in the stand-in of libcudart. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* kind: launch, product, copy, set, sync, alloc, free, call; numbers: of a launch grid, block and shared memory, of a
 * product m, n, k, batch and type, of a copy bytes and direction, of an allocation bytes and kind of memory */
void dryrun_record(const char *kind, const char *name, const int64_t *numbers, int count);

#define RECORD(kind, name, ...)                                                                       \
    do {                                                                                              \
        const int64_t numbers_[] = {__VA_ARGS__};                                                     \
        dryrun_record(kind, name, numbers_, (int)(sizeof numbers_ / sizeof *numbers_));               \
    } while (0)
