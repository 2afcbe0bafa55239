/* The cards, and the record of what was asked of them. */
#include "cudart.h"

typedef struct {
    int64_t nanoseconds;
    const char *kind;
    const char *name;
    int64_t numbers[8];
} Event;

static const Card CARDS[] = {
    {75, "dry run of a T4 (7.5)", 40, 1024, 16, 4, 65536, 65536, 16},
    {80, "dry run of an A100 (8.0)", 108, 2048, 32, 40, 166912, 167936, 80},
    {86, "dry run of an RTX 3090 (8.6)", 82, 1536, 16, 6, 101376, 102400, 24},
    {89, "dry run of an L4 (8.9)", 58, 1536, 24, 48, 101376, 102400, 24},
    {90, "dry run of an H100 (9.0)", 132, 2048, 32, 50, 232448, 233472, 80},
    {100, "dry run of a B200 (10.0)", 148, 2048, 32, 126, 232448, 233472, 180},
    {120, "dry run of an RTX 5090 (12.0)", 170, 1536, 24, 96, 101376, 102400, 32},
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int64_t memory_now, memory_peak;
int capturing;
static Event *events;
static size_t event_count, event_room;

const Card *card(void) {
    static const Card *chosen;
    if (!chosen) {
        const char *wanted = getenv("DRYRUN_COMPUTE");
        int compute = wanted ? atoi(wanted) : 90;
        for (size_t i = 0; i < sizeof CARDS / sizeof *CARDS; i++)
            if (CARDS[i].compute == compute) chosen = &CARDS[i];
        if (!chosen) {
            fprintf(stderr, "DRYRUN_COMPUTE=%s: no such card\n", wanted);
            exit(1);
        }
    }
    return chosen;
}

int failure(const char *function) {
    const char *wanted = getenv("DRYRUN_FAIL"), *colon = wanted ? strchr(wanted, ':') : NULL;
    if (!colon || (size_t)(colon - wanted) != strlen(function) || strncmp(wanted, function, colon - wanted)) return 0;
    return atoi(colon + 1);
}

void dryrun_record(const char *kind, const char *name, const int64_t *numbers, int count) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&lock);
    if (event_count == event_room) {
        event_room = event_room ? 2 * event_room : 4096;
        events = realloc(events, event_room * sizeof *events);
    }
    Event *event = &events[event_count++];
    memset(event, 0, sizeof *event);
    event->nanoseconds = now.tv_sec * 1000000000LL + now.tv_nsec;
    event->kind = kind;
    event->name = name;
    memcpy(event->numbers, numbers, count * sizeof *numbers);
    pthread_mutex_unlock(&lock);
}

/* for the worker, through ctypes */
void dryrun_reset(void) {
    pthread_mutex_lock(&lock);
    event_count = 0;
    memory_peak = memory_now;
    pthread_mutex_unlock(&lock);
}
int64_t dryrun_memory_now(void) { return memory_now; }
int64_t dryrun_memory_peak(void) { return memory_peak; }
int dryrun_write(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) return 1;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < event_count; i++) {
        fprintf(file, "%lld\t%s\t%s", (long long)events[i].nanoseconds, events[i].kind, events[i].name);
        for (int j = 0; j < 8; j++) fprintf(file, "\t%lld", (long long)events[i].numbers[j]);
        fputc('\n', file);
    }
    pthread_mutex_unlock(&lock);
    return fclose(file);
}
