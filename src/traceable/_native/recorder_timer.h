/* The window of time of a process that is no Python, in which `traceable.capture` can't open it. Part of recorder.c.
 *
 * TRACEABLE_DELAY and TRACEABLE_DURATION are those of `traceable/capture/conditions.py`: seconds from the first NVTX
 * call on, which is the one that loads this library, or `start+` and seconds from the start of the process. A child that
 * is forked without an exec has no timer: a thread can't be made safely there.
 */
#ifndef RECORDER_TIMER_H
#define RECORDER_TIMER_H

#include <signal.h>

#define NS_PER_S 1000000000LL
#define LONGEST_NS (NS_PER_S * NS_PER_S)

static const char from_start[] = "start+";

static struct {
    int64_t delay_ns;
    int64_t duration_ns; /* 0: until the process ends */
} timing;

static bool is_set(const char *name) {
    const char *text = getenv(name);
    return text && text[0] && strcmp(text, "0") != 0;
}

/* Digits, a point, an exponent, as Python writes them: strtod would read them by the program's own locale. */
static int64_t read_ns(const char *text) {
    double value = 0, scale = 1;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (*text - '0');
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9'; text++)
            value += (*text - '0') * (scale /= 10);
    if (*text == 'e' || *text == 'E') {
        bool small = text[1] == '-';
        int exponent = 0;
        for (text += 1 + (text[1] == '-' || text[1] == '+'); *text >= '0' && *text <= '9' && exponent < 100; text++)
            exponent = exponent * 10 + (*text - '0');
        while (exponent-- > 0)
            value = small ? value / 10 : value * 10;
    }
    value *= (double)NS_PER_S;
    return value < (double)LONGEST_NS ? (int64_t)value : LONGEST_NS;
}

/* How long ago this process began, as Linux says it; 0 where it does not. */
static int64_t age_ns(void) {
    char text[1024];
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (size <= 0)
        return 0;
    text[size] = '\0';
    const char *place = strrchr(text, ')'); /* the name before it may hold spaces; the start is the 20th field after */
    for (int field = 0; place && field < 20; field++)
        place = strchr(place + 1, ' ');
    struct timespec now;
    if (!place || clock_gettime(CLOCK_BOOTTIME, &now))
        return 0;
    int64_t began_ns = (int64_t)strtoull(place + 1, NULL, 10) * (NS_PER_S / sysconf(_SC_CLK_TCK));
    return now.tv_sec * NS_PER_S + now.tv_nsec - began_ns;
}

static void wait_ns(int64_t ns) {
    struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    while (ns > 0 && nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

static void *keep_time(void *unused) {
    (void)unused;
    wait_ns(timing.delay_ns);
    traceable_recorder_gate(1);
    if (timing.duration_ns > 0) {
        wait_ns(timing.duration_ns);
        traceable_recorder_gate(0);
    }
    return NULL;
}

/* Open the window when its time has come, where nobody else in this process does. */
static void start_timer(void) {
    static const char *const others[] = {"TRACEABLE_STEPS", "TRACEABLE_WARMUP_STEPS", "TRACEABLE_AFTER_REQUEST",
                                         "TRACEABLE_IDLE", "TRACEABLE_CONTROL"};
    const char *delay = getenv("TRACEABLE_DELAY"), *duration = getenv("TRACEABLE_DURATION");
    if (!is_set("TRACEABLE_RECORDING_GATED") || !(delay || duration) || dlsym(RTLD_DEFAULT, "Py_IsInitialized"))
        return;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (is_set(others[i]))
            return;
    size_t skipped = sizeof from_start - 1;
    bool aged = delay && strncmp(delay, from_start, skipped) == 0;
    timing.delay_ns = delay ? read_ns(aged ? delay + skipped : delay) - (aged ? age_ns() : 0) : 0;
    timing.duration_ns = duration ? read_ns(duration) : 0;
    if (timing.delay_ns <= 0)
        traceable_recorder_gate(1); /* before the call that loaded this library is recorded */
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    if (pthread_create(&thread, NULL, keep_time, NULL) == 0)
        pthread_detach(thread);
    else
        say("timer_not_started", "no window is opened or closed by time: no thread can be made", "");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

#endif
