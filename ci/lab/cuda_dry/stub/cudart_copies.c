/* Copies, which are real, and waits. */
#include "cudart.h"

static const char *const DIRECTIONS[] = {"host-to-host", "host-to-device", "device-to-host", "device-to-device"};

/* what a stream that is being captured does not permit */
int synchronize(const char *caller) {
    RECORD("sync", caller, 0);
    return capturing ? CAPTURE_UNSUPPORTED : SUCCESS;
}

/* What the worker knows that copies to the host should say, in order: sizes in the device's shapes come from them. */
typedef struct { char *content; size_t size; } Expected;
static Expected *expected;
static int expected_count, expected_next, expected_met, copied_to_host;
void dryrun_expect(const void *content, size_t size) {
    expected = realloc(expected, (expected_count + 1) * sizeof *expected);
    expected[expected_count++] = (Expected){memcpy(malloc(size + 1), content, size), size};
}
void dryrun_expect_again(void) { expected_next = expected_met = copied_to_host = 0; }
void dryrun_expect_nothing(void) { expected_count = 0; dryrun_expect_again(); }
int dryrun_met(void) { return expected_met; }
int dryrun_copied_to_host(void) { return copied_to_host; }

static int copy(void *to, const void *from, size_t size, int direction, const char *caller, int waits) {
    int to_type = type_of(to), from_type = type_of(from);
    if (direction == DEFAULT_DIRECTION) direction = 2 * (from_type == DEVICE) + (to_type == DEVICE);
    memmove(to, from, size);
    if (direction == DEVICE_TO_HOST) {
        copied_to_host++;
        if (expected_next < expected_count && expected[expected_next].size == size) {
            memcpy(to, expected[expected_next++].content, size);
            expected_met++;
        }
    }
    RECORD("copy", DIRECTIONS[direction], (int64_t)size, direction, !waits);
    /* from the device to pageable memory it waits even when it is asked not to */
    if (waits || (direction == DEVICE_TO_HOST && to_type == UNREGISTERED)) return synchronize(caller);
    return SUCCESS;
}
int cudaMemcpy(void *to, const void *from, size_t size, int direction) {
    return copy(to, from, size, direction, "cudaMemcpy", direction != DEVICE_TO_DEVICE);
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int direction, void *stream) {
    (void)stream;
    return copy(to, from, size, direction, "cudaMemcpyAsync to pageable memory", 0);
}
int cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height,
                      int direction, void *stream) {
    (void)stream;
    for (size_t row = 0; row < height; row++) memmove(to + row * to_pitch, from + row * from_pitch, width);
    RECORD("copy", DIRECTIONS[direction < 4 ? direction : DEVICE_TO_DEVICE], (int64_t)(width * height), direction, 1);
    return SUCCESS;
}
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size) {
    (void)symbol;
    memset(to, 0, size);
    return synchronize("cudaMemcpyFromSymbol");
}
int cudaMemset(void *to, int value, size_t size) {
    RECORD("set", "cudaMemset", (int64_t)size);
    return memset(to, value, size), SUCCESS;
}
int cudaMemsetAsync(void *to, int value, size_t size, void *stream) {
    (void)stream;
    RECORD("set", "cudaMemsetAsync", (int64_t)size);
    return memset(to, value, size), SUCCESS;
}
