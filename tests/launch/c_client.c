/* A client of examples/inference_server.py in C, as one with NVTX of its own is: `c_client SOCKET REQUESTS [CONNECTIONS]`.
 *
 * Each request is a range `request` with the field `request_id`, by the rules of traceable's protocol/nvtx.py: right
 * before it its thread emits a mark in the domain `traceable.payload`, whose message is the fields as JSON and whose
 * payload is an identity; the range carries the same payload. The child range `send` ends when the request is written,
 * the mark `first_byte` is emitted with the first byte of the response. The server gets the id as `x-request-id`.
 *
 * When TRACEABLE_WARMUP_REQUESTS requests have ended it creates TRACEABLE_WARMUP_FILE, with which the windows of the
 * server begin.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *path;
static long requests;
static nvtxDomainHandle_t payload_domain;
static atomic_long next_request, ended_requests;
static atomic_uint next_identity;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static nvtxEventAttributes_t make_event(const char *text, int64_t identity) {
    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = text;
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    event.payload.llValue = identity;
    return event;
}

/* Emit the mark with the fields of the range or mark that comes next, and return the payload that this carries. */
static int64_t announce(const char *request_id) {
    char fields[160];
    int64_t identity = INT64_C(1) << 62 | (int64_t)(atomic_fetch_add(&next_identity, 1) + 1);
    snprintf(fields, sizeof fields, "{\"request_id\":\"%s\"}", request_id);
    nvtxEventAttributes_t mark = make_event(fields, identity);
    nvtxDomainMarkEx(payload_domain, &mark);
    return identity;
}

static void write_all(int server, const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = write(server, text, length);
        if (written <= 0) {
            fail("write");
        }
        text += written, length -= (size_t)written;
    }
}

/* Read one response; exit unless it is 200 and carries the id. */
static void read_response(int server, const char *request_id) {
    char text[8192], header[192];
    size_t length = 0, whole = sizeof text - 1;
    while (length < whole) {
        ssize_t got = read(server, text + length, sizeof text - 1 - length);
        if (got <= 0) {
            fail("read");
        }
        if (length == 0) {
            nvtxEventAttributes_t mark = make_event("first_byte", announce(request_id));
            nvtxMarkEx(&mark);
        }
        length += (size_t)got;
        text[length] = '\0';
        const char *end = strstr(text, "\r\n\r\n"), *size = strcasestr(text, "\r\ncontent-length:");
        if (end != NULL && size != NULL) {
            whole = (size_t)(end + 4 - text) + (size_t)atol(size + 17);
        }
    }
    snprintf(header, sizeof header, "\r\nx-request-id: %s\r\n", request_id);
    if (strncmp(text, "HTTP/1.1 200 ", 13) != 0 || strcasestr(text, header) == NULL) {
        fprintf(stderr, "c_client: unexpected response: %s\n", text);
        exit(1);
    }
}

static void count_warmup(void) {
    const char *number = getenv("TRACEABLE_WARMUP_REQUESTS"), *file = getenv("TRACEABLE_WARMUP_FILE");
    if (number != NULL && file != NULL && atomic_fetch_add(&ended_requests, 1) + 1 == atol(number)) {
        int created = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (created < 0) {
            fail(file);
        }
        close(created);
    }
}

static void send_request(int server, long number) {
    char id[32], body[64], head[256];
    snprintf(id, sizeof id, "c-%ld", number);
    int length = snprintf(body, sizeof body, "{\"prompt\": \"text %ld\"}", number);
    snprintf(head, sizeof head, "POST /predict HTTP/1.1\r\nHost: c\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n", id, length);
    nvtxEventAttributes_t request = make_event("request", announce(id));
    nvtxRangePushEx(&request);
    nvtxRangePushA("send");
    write_all(server, head, strlen(head));
    write_all(server, body, (size_t)length);
    nvtxRangePop();
    read_response(server, id);
    nvtxRangePop();
    count_warmup();
}

static void *run_connection(void *unused) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address) < 0) {
        fail(path);
    }
    for (long number; (number = atomic_fetch_add(&next_request, 1)) < requests;) {
        send_request(server, number);
    }
    close(server);
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: c_client SOCKET REQUESTS [CONNECTIONS]\n");
        return 2;
    }
    path = argv[1], requests = atol(argv[2]);
    long connections = argc > 3 ? atol(argv[3]) : 1;
    pthread_t threads[connections];
    payload_domain = nvtxDomainCreateA("traceable.payload");
    for (long i = 0; i < connections; i++) {
        if (pthread_create(&threads[i], NULL, run_connection, NULL) != 0) {
            fail("pthread_create");
        }
    }
    for (long i = 0; i < connections; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("%ld answers\n", requests);
    return 0;
}
