/* A client of the example server in C: HTTP requests over a Unix socket, each an NVTX range with its id as a field.
 *
 *     cc -O2 -I NVTX/include -o client examples/client.c -ldl -lpthread     (pip install nvidia-nvtx has the headers)
 *     traceable serve --uds infer.sock --server 'python examples/inference_server.py --uds {uds}' \
 *         --client './client --uds {uds} --requests 2000'
 *
 * traceable's rule for fields (src/traceable/protocol/nvtx.py): right before the range a mark in the domain
 * `traceable.payload`, whose message is the fields as JSON; mark and range carry the same payload, a number that is new
 * in the process. After TRACEABLE_WARMUP_REQUESTS requests the file TRACEABLE_WARMUP_FILE is created.
 */
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

#define IDENTITY 0x4000000000000000 /* its lower 30 bits count from 1 */

static const char *path;
static int requests = 200, concurrency = 16, warmup_requests;
static atomic_int next_request, ended_requests;
static nvtxDomainHandle_t payload_domain;

static void fail(const char *what)
{
    fprintf(stderr, "client: %s\n", what);
    exit(1);
}

static nvtxEventAttributes_t make_event(const char *message, int64_t identity)
{
    nvtxEventAttributes_t event = {0};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = message;
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    event.payload.llValue = identity;
    return event;
}

/* Announce the id of a request, and return the payload for what follows. */
static int64_t announce(const char *id)
{
    static atomic_int instances;
    char fields[64];
    int64_t identity = IDENTITY | (atomic_fetch_add(&instances, 1) + 1);
    snprintf(fields, sizeof fields, "{\"request_id\":\"%s\"}", id);
    nvtxEventAttributes_t mark = make_event(fields, identity);
    nvtxDomainMarkEx(payload_domain, &mark);
    return identity;
}

static int connect_to_server(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (strlen(path) >= sizeof address.sun_path)
        fail("the path of the socket is too long");
    strcpy(address.sun_path, path);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address) != 0)
        fail("can't connect");
    return connection;
}

/* Read a response of at most `size` - 1 bytes; mark its first byte. */
static void receive(int connection, const char *id, char *response, size_t size)
{
    size_t received = 0, whole = 0;
    while (!whole || received < whole) {
        ssize_t part = received + 1 < size ? recv(connection, response + received, size - 1 - received, 0) : 0;
        if (part <= 0)
            fail("the response is incomplete");
        if (!received) {
            nvtxEventAttributes_t mark = make_event("first_byte", announce(id));
            nvtxMarkEx(&mark);
        }
        received += (size_t)part;
        response[received] = 0;
        char *body = strstr(response, "\r\n\r\n"), *length = strstr(response, "Content-Length: ");
        if (body && length)
            whole = (size_t)(body + 4 - response) + strtoul(length + 16, NULL, 10);
    }
}

static void *send_requests(void *unused)
{
    static const char body[] = "{\"prompt\": \"the next byte\"}";
    char request[512], response[4096], id[32];
    int connection = connect_to_server(), index;
    while ((index = atomic_fetch_add(&next_request, 1)) < requests) {
        snprintf(id, sizeof id, "c-%d-%d", (int)getpid(), index);
        nvtxEventAttributes_t range = make_event("request", announce(id));
        nvtxRangePushEx(&range);
        nvtxRangePushA("send");
        int length = snprintf(request, sizeof request,
                              "POST /predict HTTP/1.1\r\nHost: example\r\nX-Request-Id: %s\r\n"
                              "Content-Length: %zu\r\n\r\n%s", id, sizeof body - 1, body);
        if (send(connection, request, (size_t)length, MSG_NOSIGNAL) != length)
            fail("the request could not be sent");
        nvtxRangePop();
        receive(connection, id, response, sizeof response);
        nvtxRangePop();
        if (strncmp(response, "HTTP/1.1 200 ", 13) != 0)
            fail(response);
        const char *warmup_file = getenv("TRACEABLE_WARMUP_FILE");
        if (atomic_fetch_add(&ended_requests, 1) + 1 == warmup_requests && warmup_file)
            close(open(warmup_file, O_CREAT | O_WRONLY, 0644));
    }
    close(connection);
    return unused;
}

int main(int count, char **words)
{
    const char *warmup = getenv("TRACEABLE_WARMUP_REQUESTS");
    pthread_t threads[64];
    for (int i = 1; i + 1 < count; i += 2) {
        if (strcmp(words[i], "--uds") == 0)
            path = words[i + 1];
        else if (strcmp(words[i], "--requests") == 0)
            requests = atoi(words[i + 1]);
        else if (strcmp(words[i], "--concurrency") == 0)
            concurrency = atoi(words[i + 1]);
        else
            fail("options: --uds PATH --requests N --concurrency N");
    }
    if (!path || requests < 1 || concurrency < 1 || concurrency > 64)
        fail("--uds is required, --requests and --concurrency are from 1, the latter to 64");
    warmup_requests = warmup ? atoi(warmup) : 0;
    payload_domain = nvtxDomainCreateA("traceable.payload");
    for (int i = 0; i < concurrency; i++)
        if (pthread_create(&threads[i], NULL, send_requests, NULL) != 0)
            fail("can't start a thread");
    for (int i = 0; i < concurrency; i++)
        pthread_join(threads[i], NULL);
    printf("%d answers\n", requests);
    return 0;
}
