/* A program that calls NVTX as C programs do, one scene a run: `emitter SCENE [NUMBER...]`. What it prints, tests read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PADDING "................................................................"

static long number(char **words, int index) { return atol(words[index]); }

static nvtxEventAttributes_t named(const char *text) {
    nvtxEventAttributes_t event;
    memset(&event, 0, sizeof event);
    event.version = NVTX_VERSION;
    event.size = sizeof event;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = text;
    return event;
}

static void payloads(void) {
    nvtxEventAttributes_t event = named("uint64");
    event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64, event.payload.ullValue = UINT64_MAX;
    nvtxMarkEx(&event);
    event = named("int64"), event.payloadType = NVTX_PAYLOAD_TYPE_INT64, event.payload.llValue = -5;
    nvtxMarkEx(&event);
    event = named("double"), event.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE, event.payload.dValue = 0.1;
    nvtxMarkEx(&event);
    event = named("uint32"), event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT32, event.payload.uiValue = UINT32_MAX;
    nvtxMarkEx(&event);
    event = named("int32"), event.payloadType = NVTX_PAYLOAD_TYPE_INT32, event.payload.iValue = -7;
    nvtxMarkEx(&event);
    event = named("float"), event.payloadType = NVTX_PAYLOAD_TYPE_FLOAT, event.payload.fValue = 1.5f;
    nvtxMarkEx(&event);
    event = named("unknown"), event.payloadType = 99, event.payload.ullValue = 1;
    nvtxMarkEx(&event);
    event = named("all"), event.category = 7, event.colorType = NVTX_COLOR_ARGB, event.color = 0xFF00FF00;
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64, event.payload.llValue = 42;
    nvtxRangePushEx(&event);
    nvtxRangePop();
    nvtxRangeEnd(nvtxRangeStartEx(&event));
}

static void messages(long length) {
    nvtxDomainHandle_t domain = nvtxDomainCreateW(L"d\u00f6main");
    nvtxEventAttributes_t event = named(NULL);
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringW(domain, L"r\u00e9gist\u00e9r\u00e9 \U0001F600");
    nvtxDomainRangePushEx(domain, &event);
    nvtxDomainRangePop(domain);
    event.message.registered = nvtxDomainRegisterStringA(NULL, "plain");
    nvtxMarkEx(&event);
    printf("%d\n", nvtxDomainRegisterStringA(NULL, "plain") == event.message.registered);
    event.messageType = NVTX_MESSAGE_TYPE_UNICODE;
    event.message.unicode = L"wide \u20ac";
    nvtxMarkEx(&event);
    wchar_t lone[] = {L'x', 0xD800, 0x7FFFFFFF, 0};
    nvtxMarkW(lone);
    nvtxMarkA("");
    nvtxMarkA("\xff\xfe bytes");
    nvtxRangePushW(L"pushed wide");
    nvtxRangePop();
    nvtxRangeEnd(nvtxRangeStartW(L"started wide"));
    event = named(NULL);
    nvtxMarkEx(&event);
    event.messageType = NVTX_MESSAGE_UNKNOWN;
    nvtxMarkEx(&event);
    char *text = malloc((size_t)length + 1);
    wchar_t *wide = malloc(((size_t)length + 1) * sizeof *wide);
    for (long i = 0; i < length; i++)
        text[i] = (char)('a' + i % 26), wide[i] = L'\u00e9';
    text[length] = 0, wide[length] = 0;
    nvtxMarkA(text);
    nvtxMarkW(wide);
    free(text), free(wide);
    for (int i = 0; i < 3; i++) /* the same text again and again, between others, from different memory */
        for (int k = 0; k < 500; k++) {
            char repeated[32];
            snprintf(repeated, sizeof repeated, "repeated %d", k);
            nvtxMarkA(repeated);
        }
}

static void names(void) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("engine");
    nvtxNameCategoryA(1, "io");
    nvtxNameCategoryW(2, L"caf\u00e9");
    nvtxDomainNameCategoryA(domain, 1, "tokens");
    nvtxDomainNameCategoryW(domain, 2, L"\u65e5\u672c");
    nvtxNameOsThreadA((uint32_t)syscall(SYS_gettid), "the main one");
    nvtxNameOsThreadW(12345, L"gew\u00e4hlt");
    nvtxDomainDestroy(domain);
    printf("%d\n", nvtxDomainCreateA("engine") == domain);
    nvtxMarkA("done");
}

static void *emit_pairs(void *count) {
    for (long i = 0; i < *(long *)count; i++) {
        nvtxRangePushA("outer");
        nvtxRangePushA("inner");
        nvtxRangePop();
        nvtxRangePop();
    }
    return NULL;
}

static void threads(long many, long count) {
    pthread_t *ids = calloc((size_t)many, sizeof *ids);
    for (long i = 0; i < many; i++)
        pthread_create(&ids[i], NULL, emit_pairs, &count);
    for (long i = 0; i < many; i++)
        pthread_join(ids[i], NULL);
    free(ids);
}

static void *end_it(void *range) {
    nvtxRangeEnd(*(nvtxRangeId_t *)range);
    return NULL;
}

static void end_elsewhere(void) {
    nvtxRangeId_t range = nvtxRangeStartA("handed over");
    nvtxRangeId_t own = nvtxRangeStartA("kept");
    nvtxRangeStartA("never ended");
    pthread_t thread;
    pthread_create(&thread, NULL, end_it, &range);
    pthread_join(thread, NULL);
    nvtxRangeEnd(own);
    nvtxRangeEnd(own);  /* ended twice */
    nvtxRangeEnd(4711); /* never started */
}

static void domains(void) {
    nvtxDomainHandle_t a = nvtxDomainCreateA("a"), b = nvtxDomainCreateA("b");
    nvtxEventAttributes_t in_a = named("in a"), in_b = named("in b"), in_none = named("in none");
    nvtxDomainRangePop(a); /* nothing to pop */
    nvtxDomainRangePushEx(a, &in_a);
    nvtxDomainRangePushEx(b, &in_b);
    nvtxRangePushEx(&in_none);
    nvtxDomainRangePop(a); /* crossed: each domain has a stack of its own */
    nvtxRangePop();
    nvtxDomainRangePop(b);
}

static void forked(long children, long count) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("shared");
    nvtxEventAttributes_t event = named(NULL);
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain, "registered before");
    nvtxNameCategoryA(3, "before");
    nvtxDomainRangePushEx(domain, &event);
    nvtxRangeId_t inherited = nvtxRangeStartA("parent's");
    for (long child = 0; child < children; child++)
        if (fork() == 0) {
            nvtxRangeEnd(inherited);
            for (long i = 0; i < count; i++) {
                nvtxDomainRangePushEx(domain, &event);
                nvtxDomainRangePop(domain);
            }
            nvtxMarkA("child");
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    nvtxRangeEnd(inherited);
    nvtxDomainRangePop(domain);
}

/* Fork while other threads are in the middle of recording. */
static void fork_among_threads(long many, long count, long children) {
    pthread_t *ids = calloc((size_t)many, sizeof *ids);
    for (long i = 0; i < many; i++)
        pthread_create(&ids[i], NULL, emit_pairs, &count);
    for (long child = 0; child < children; child++) {
        nvtxMarkA("forking");
        if (fork() == 0) {
            nvtxMarkA("child");
            _exit(0);
        }
    }
    for (long i = 0; i < many; i++)
        pthread_join(ids[i], NULL);
    while (wait(NULL) > 0)
        ;
    free(ids);
}

/* Enter ranges for ever; say how many were entered, after every one of them. */
static void endless(void) {
    for (uint64_t entered = 1;; entered++) {
        nvtxRangePushA("entered");
        if (write(STDOUT_FILENO, &entered, sizeof entered) < 0)
            _exit(1);
        nvtxRangePop();
    }
}

/* Ranges that say their number in the payload, the color, the text and by how deep they lie, for ever or `count` times. */
struct numbering {
    long count;
    bool told;
    _Atomic long tid;
    _Atomic uint64_t ended; /* ranges */
};

static atomic_bool enough;

static void *emit_numbered(void *wanted) {
    struct numbering *numbering = wanted;
    numbering->tid = syscall(SYS_gettid);
    char text[96];
    for (uint64_t i = 1; (numbering->count == 0 || i <= (uint64_t)numbering->count) && !enough; i++) {
        snprintf(text, sizeof text, "number %llu%.*s", (unsigned long long)i, (int)(i % 64), PADDING);
        nvtxEventAttributes_t event = named(text);
        event.payloadType = NVTX_PAYLOAD_TYPE_INT64, event.payload.llValue = (int64_t)i;
        if (i % 3)
            event.colorType = NVTX_COLOR_ARGB, event.color = (uint32_t)i;
        for (uint64_t depth = 0; depth < i % 4; depth++)
            nvtxRangePushA("around");
        nvtxRangePushEx(&event);
        if (numbering->told && write(STDOUT_FILENO, &i, sizeof i) < 0)
            _exit(1);
        for (uint64_t depth = 0; depth <= i % 4; depth++)
            nvtxRangePop();
        numbering->ended = i;
    }
    return NULL;
}

static void numbered(long threads, long count) {
    struct numbering silent = {.count = count}, told = {.count = count, .told = true};
    pthread_t ids[64];
    nvtxRangePushA("held");
    for (long i = 1; i < threads; i++)
        pthread_create(&ids[i], NULL, emit_numbered, &silent);
    emit_numbered(threads ? &told : &silent);
    for (long i = 1; i < threads; i++)
        pthread_join(ids[i], NULL);
}

/* Dump the flight recorder to `directory`/<number> while threads record; say before each how many ranges have ended. */
static void dumps(long threads, long count, const char *directory) {
    pthread_t ids[64];
    struct numbering endless[64] = {{.count = 0}};
    nvtxMarkA("before");
    void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_NOW | RTLD_NOLOAD);
    int (*dump)(const char *, const char *) = NULL;
    if (library)
        *(void **)&dump = dlsym(library, "traceable_recorder_dump");
    if (!dump)
        exit(1);
    for (long i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, emit_numbered, &endless[i]);
    for (long number = 0; number < count; number++) {
        char path[4096];
        for (long i = 0; i < threads; i++)
            while (endless[i].ended < (uint64_t)(number + 1) * 2000)
                sched_yield();
        for (long i = 0; i < threads; i++)
            printf("%ld %llu ", endless[i].tid, (unsigned long long)endless[i].ended);
        snprintf(path, sizeof path, "%s/%ld", directory, number);
        printf("%d\n", mkdir(path, 0777) ? -1 : dump(path, "the emitter"));
    }
    enough = true;
    for (long i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
}

/* A thread for each request, one after the other. */
static void *serve_request(void *number) {
    char name[16];
    nvtxEventAttributes_t event = named("request");
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64, event.payload.llValue = *(long *)number;
    nvtxRangePushEx(&event);
    nvtxRangePop();
    snprintf(name, sizeof name, "served %ld", *(long *)number);
    prctl(PR_SET_NAME, name);
    return NULL;
}

static void thread_each(long count) {
    for (long i = 0; i < count; i++) {
        pthread_t id;
        pthread_create(&id, NULL, serve_request, &i);
        pthread_join(id, NULL);
    }
}

/* Threads that are all alive at once. */
static pthread_barrier_t crowd_barrier;

static void *stand_in_crowd(void *unused) {
    nvtxRangePushA("in the crowd");
    pthread_barrier_wait(&crowd_barrier);
    nvtxRangePop();
    pthread_barrier_wait(&crowd_barrier);
    return unused;
}

static void crowd(long many) {
    pthread_t *ids = calloc((size_t)many, sizeof *ids);
    pthread_barrier_init(&crowd_barrier, NULL, (unsigned)many);
    for (long i = 0; i < many; i++)
        pthread_create(&ids[i], NULL, stand_in_crowd, NULL);
    for (long i = 0; i < many; i++)
        pthread_join(ids[i], NULL);
    free(ids);
}

/* Ranges that stay open while so many others come and go that nothing of their beginning is left. */
static void held(long depth, long count) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("other");
    nvtxEventAttributes_t event = named("held in other");
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64, event.payload.llValue = 42, event.category = 7;
    nvtxDomainRangePushEx(domain, &event);
    for (long i = 0; i < depth; i++) {
        char text[32];
        snprintf(text, sizeof text, "held %ld", i);
        nvtxRangePushA(text);
    }
    emit_pairs(&count);
    nvtxRangePop();
    emit_pairs(&count);
    for (long i = 1; i < depth; i++)
        nvtxRangePop();
    nvtxRangePop(); /* one more than was pushed */
    nvtxMarkA("after");
}

static volatile sig_atomic_t handled;

static void on_signal(int signal) {
    (void)signal;
    nvtxMarkA("handler");
    handled++;
}

static pthread_t interrupted;
static volatile long pairs;

/* One signal after another, each only when the interrupted thread has got on: else it would do nothing but handle. */
static void *interrupt(void *wanted) {
    for (long sent = 0; sent < *(long *)wanted; sent++) {
        long before = pairs;
        while (handled < sent || pairs < before + 1 + sent % 7)
            sched_yield();
        pthread_kill(interrupted, SIGUSR1);
    }
    return NULL;
}

static void signals(long wanted) {
    struct sigaction action = {.sa_handler = on_signal};
    nvtxInitialize(NULL); /* NVTX itself waits for ever where a handler interrupts its first call */
    sigaction(SIGUSR1, &action, NULL);
    interrupted = pthread_self();
    pthread_t thread;
    pthread_create(&thread, NULL, interrupt, &wanted);
    for (; handled < wanted; pairs++) {
        nvtxRangePushA("main");
        nvtxRangePop();
    }
    pthread_join(thread, NULL);
    printf("%ld %ld\n", pairs, (long)handled);
}

static void keep_errno(void) {
    errno = 77;
    for (int i = 0; i < 100000; i++)
        nvtxMarkA("mark");
    printf("%d\n", errno);
}

/* A daemon closes every descriptor; what it opens then must stay its own. */
static void close_descriptors(const char *mine, long count) {
    nvtxMarkA("before");
    for (int file = 3; file < 256; file++)
        close(file);
    for (int i = 0; i < 32; i++)
        if (open(mine, O_RDWR | O_CREAT, 0600) < 0)
            exit(1);
    for (long i = 0; i < count; i++)
        nvtxMarkA("after");
}

static void file_size_limit(long bytes, long count) {
    struct rlimit limit = {(rlim_t)bytes, (rlim_t)bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (long i = 0; i < count; i++)
        nvtxMarkA("limited");
}

static pthread_key_t late;

static void emit_late(void *round) {
    nvtxMarkA("late");
    if ((long)round < 3)
        pthread_setspecific(late, (void *)((long)round + 1));
}

static void *emit_and_end(void *unused) {
    pthread_setspecific(late, (void *)1L);
    nvtxMarkA("in time");
    return unused;
}

static void late_destructors(void) {
    pthread_t thread;
    nvtxInitialize(NULL);
    pthread_key_create(&late, emit_late);
    pthread_create(&thread, NULL, emit_and_end, NULL);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    const char *scene = argv[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    (void)argc;
    if (!strcmp(scene, "payloads")) payloads();
    else if (!strcmp(scene, "messages")) messages(number(argv, 2));
    else if (!strcmp(scene, "names")) names();
    else if (!strcmp(scene, "threads")) threads(number(argv, 2), number(argv, 3));
    else if (!strcmp(scene, "end-elsewhere")) end_elsewhere();
    else if (!strcmp(scene, "domains")) domains();
    else if (!strcmp(scene, "fork")) forked(number(argv, 2), number(argv, 3));
    else if (!strcmp(scene, "fork-among-threads"))
        fork_among_threads(number(argv, 2), number(argv, 3), number(argv, 4));
    else if (!strcmp(scene, "endless")) endless();
    else if (!strcmp(scene, "signals")) signals(number(argv, 2));
    else if (!strcmp(scene, "close")) close_descriptors(argv[2], number(argv, 3));
    else if (!strcmp(scene, "file-size")) file_size_limit(number(argv, 2), number(argv, 3));
    else if (!strcmp(scene, "errno")) keep_errno();
    else if (!strcmp(scene, "late")) late_destructors();
    else if (!strcmp(scene, "numbered")) numbered(number(argv, 2), number(argv, 3));
    else if (!strcmp(scene, "dumps")) dumps(number(argv, 2), number(argv, 3), argv[4]);
    else if (!strcmp(scene, "thread-each")) thread_each(number(argv, 2));
    else if (!strcmp(scene, "crowd")) crowd(number(argv, 2));
    else if (!strcmp(scene, "abort")) { emit_pairs(&(long){number(argv, 2)}); abort(); }
    else if (!strcmp(scene, "held")) held(number(argv, 2), number(argv, 3));
    else if (!strcmp(scene, "nothing")) nvtxInitialize(NULL);
    else if (!strcmp(scene, "marks")) for (long i = 0; i < number(argv, 2); i++) nvtxMarkA("mark");
    else if (!strcmp(scene, "deep")) {
        for (long i = 0; i < number(argv, 2); i++) nvtxRangePushA("level");
        for (long i = 0; i < number(argv, 2); i++) nvtxRangePop();
    } else if (!strcmp(scene, "segv")) {
        emit_pairs(&(long){number(argv, 2)});
        nvtxRangePushA("open");
        raise(SIGSEGV);
    } else if (!strcmp(scene, "_exit")) {
        emit_pairs(&(long){number(argv, 2)});
        _exit(9);
    } else if (!strcmp(scene, "exec")) {
        nvtxDomainCreateA("before exec");
        emit_pairs(&(long){number(argv, 2)});
        execl(argv[0], argv[0], "names", (char *)NULL);
    } else return 64;
    return 0;
}
