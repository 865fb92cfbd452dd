/* An HTTP/1.1 proxy for benchmarks of slow object stores: it delays the first byte of each answer, and paces bodies.

   delaying_proxy PORT UPSTREAM_PORT FIRST_BYTE_NS BYTES_PER_S      listens on 127.0.0.1, and prints its port
                                                                    (PORT 0: a free one; BYTES_PER_S 0: no limit)

   An answer begins FIRST_BYTE_NS after the end of its request, or later if the server itself took longer. Bodies of
   requests and answers pass at BYTES_PER_S on each connection. Requests of one connection follow each other, and each
   connection has one of its own to the server, so that connections that stay open stay open. No TLS, no HTTP/2.
   Build: cc -O2 -pthread delaying_proxy.c -o delaying_proxy */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES 65536
#define PIECE_BYTES 32768
#define NS_PER_S 1000000000LL

static int upstream_port;
static int64_t first_byte_ns;
static int64_t bytes_per_s;

/* One side of a connection: `data[begin..end)` was received and not yet passed on. */
struct side {
    int socket;
    size_t begin, end;
    char data[HEAD_BYTES];
};

/* What the first lines of a message say: `length` of its head, and how its body ends. */
struct head {
    size_t length;
    int status, chunked, closes, until_close, is_head_method;
    int64_t body;
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void sleep_until(int64_t at)
{
    struct timespec until = {at / NS_PER_S, at % NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static int send_all(int to, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(to, data, length, MSG_NOSIGNAL);
        if (sent <= 0)
            return -1;
        data += sent;
        length -= (size_t)sent;
    }
    return 0;
}

/* Receives more behind what is there: the number of bytes, 0 at the end, -1 on an error or without room. */
static ssize_t receive(struct side *from)
{
    if (from->begin == from->end)
        from->begin = from->end = 0;
    if (from->end == HEAD_BYTES && from->begin > 0) {
        memmove(from->data, from->data + from->begin, from->end - from->begin);
        from->end -= from->begin;
        from->begin = 0;
    }
    if (from->end == HEAD_BYTES)
        return -1;
    ssize_t got = recv(from->socket, from->data + from->end, HEAD_BYTES - from->end, 0);
    if (got > 0)
        from->end += (size_t)got;
    return got;
}

/* Passes on `length` bytes (-1: to the end of the stream), each piece when its last byte is due. */
static int pass(struct side *from, int to, int64_t length, int64_t *due)
{
    while (length != 0) {
        if (from->begin == from->end) {
            ssize_t got = receive(from);
            if (got <= 0)
                return length < 0 && got == 0 ? 0 : -1;
        }
        size_t piece = from->end - from->begin;
        if (piece > PIECE_BYTES)
            piece = PIECE_BYTES;
        if (length > 0 && (int64_t)piece > length)
            piece = (size_t)length;
        if (bytes_per_s > 0) {
            *due += (int64_t)piece * NS_PER_S / bytes_per_s;
            sleep_until(*due);
        }
        if (send_all(to, from->data + from->begin, piece) < 0)
            return -1;
        /* A receiver that does not read does not gain speed for later. */
        if (now_ns() - *due > 100000000)
            *due = now_ns();
        from->begin += piece;
        if (length > 0)
            length -= (int64_t)piece;
    }
    return 0;
}

/* The length of a line with its end; it is received if needed. -1 on an error. */
static ssize_t line(struct side *from)
{
    for (;;) {
        char *end = memmem(from->data + from->begin, from->end - from->begin, "\r\n", 2);
        if (end != NULL)
            return end + 2 - (from->data + from->begin);
        if (receive(from) <= 0)
            return -1;
    }
}

static int pass_line(struct side *from, int to, ssize_t length)
{
    int failed = send_all(to, from->data + from->begin, (size_t)length);
    from->begin += (size_t)length;
    return failed;
}

static int pass_chunks(struct side *from, int to, int64_t *due)
{
    for (;;) {
        ssize_t length = line(from);
        if (length < 0)
            return -1;
        int64_t size = strtoll(from->data + from->begin, NULL, 16);
        if (pass_line(from, to, length) < 0)
            return -1;
        if (size == 0)
            break;
        if (pass(from, to, size + 2, due) < 0)
            return -1;
    }
    for (;;) { /* trailers, up to an empty line */
        ssize_t length = line(from);
        if (length < 0 || pass_line(from, to, length) < 0)
            return -1;
        if (length == 2)
            return 0;
    }
}

static int has(const char *name, const char *at, const char *wanted, const char *end)
{
    size_t length = strlen(name);
    if (strncasecmp(at, name, length) != 0)
        return 0;
    for (at += length; at + strlen(wanted) <= end; at++)
        if (strncasecmp(at, wanted, strlen(wanted)) == 0)
            return 1;
    return 0;
}

/* Receives a head. 0 at the end of the stream before its first byte, -1 on an error. */
static int receive_head(struct side *from, struct head *found)
{
    char *end;
    while ((end = memmem(from->data + from->begin, from->end - from->begin, "\r\n\r\n", 4)) == NULL) {
        int was_empty = from->begin == from->end;
        ssize_t got = receive(from);
        if (got <= 0)
            return was_empty ? 0 : -1;
    }
    char *start = from->data + from->begin;
    memset(found, 0, sizeof *found);
    found->length = (size_t)(end + 4 - start);
    found->body = -1;
    if (strncmp(start, "HTTP/", 5) == 0)
        found->status = atoi(start + 9);
    found->is_head_method = strncmp(start, "HEAD ", 5) == 0;
    char *at = start;
    while ((at = memmem(at, (size_t)(end + 2 - at), "\r\n", 2)) != NULL && at < end) {
        at += 2;
        char *stop = memmem(at, (size_t)(end + 2 - at), "\r\n", 2);
        if (strncasecmp(at, "content-length:", 15) == 0)
            found->body = strtoll(at + 15, NULL, 10);
        found->chunked |= has("transfer-encoding:", at, "chunked", stop);
        found->closes |= has("connection:", at, "close", stop);
    }
    return 1;
}

static int connect_upstream(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)upstream_port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int found = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(found, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(found, (struct sockaddr *)&address, sizeof address) < 0) {
        close(found);
        return -1;
    }
    return found;
}

static int pass_body(struct side *from, int to, const struct head *head, int64_t *due)
{
    if (head->chunked)
        return pass_chunks(from, to, due);
    return pass(from, to, head->until_close ? -1 : head->body, due);
}

/* One request and its answer. 1: the connection stays open. */
static int exchange(struct side *client, struct side *server)
{
    struct head request, answer;
    if (receive_head(client, &request) <= 0)
        return 0;
    const char expected[] = "HTTP/1.1 100 Continue\r\n\r\n";
    char *expects = memmem(client->data + client->begin, request.length, "100-continue", 12);
    if (send_all(server->socket, client->data + client->begin, request.length) < 0)
        return 0;
    client->begin += request.length;
    if (expects != NULL && send_all(client->socket, expected, sizeof expected - 1) < 0)
        return 0;
    if (request.body < 0)
        request.body = 0;
    int64_t due = now_ns();
    if (pass_body(client, server->socket, &request, &due) < 0)
        return 0;
    due = now_ns() + first_byte_ns;
    do { /* the answers "100 Continue" were already given */
        if (receive_head(server, &answer) <= 0)
            return 0;
        if (answer.status / 100 == 1)
            server->begin += answer.length;
    } while (answer.status / 100 == 1);
    int is_bare = request.is_head_method || answer.status == 204 || answer.status == 304;
    if (is_bare)
        answer.body = answer.chunked = 0;
    answer.until_close = !is_bare && !answer.chunked && answer.body < 0;
    sleep_until(due);
    due = due > now_ns() - 1000000 ? due : now_ns();
    /* A short body goes with its head, as from most servers: one packet, and one wake of the client. */
    if (!answer.chunked && !answer.until_close && (size_t)answer.body <= server->end - server->begin - answer.length
        && answer.body <= 4096) {
        if (bytes_per_s > 0)
            sleep_until(due + answer.body * NS_PER_S / bytes_per_s);
        answer.length += (size_t)answer.body;
        answer.body = 0;
    }
    if (send_all(client->socket, server->data + server->begin, answer.length) < 0)
        return 0;
    server->begin += answer.length;
    if (pass_body(server, client->socket, &answer, &due) < 0)
        return 0;
    return !request.closes && !answer.closes && !answer.until_close;
}

static void *serve(void *given)
{
    struct side *client = given, *server = calloc(1, sizeof *server);
    prctl(PR_SET_TIMERSLACK, 1);
    if (server != NULL && (server->socket = connect_upstream()) >= 0) {
        while (exchange(client, server))
            ;
        close(server->socket);
    }
    close(client->socket);
    free(server);
    free(client);
    return NULL;
}

int main(int count, char **words)
{
    if (count != 5) {
        fprintf(stderr, "usage: delaying_proxy PORT UPSTREAM_PORT FIRST_BYTE_NS BYTES_PER_S\n");
        return 2;
    }
    upstream_port = atoi(words[2]);
    first_byte_ns = atoll(words[3]);
    bytes_per_s = atoll(words[4]);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 1024) < 0
        || getsockname(listener, (struct sockaddr *)&address, &size) < 0) {
        perror("delaying_proxy");
        return 1;
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&small, 256 * 1024);
    for (;;) {
        struct side *client = calloc(1, sizeof *client);
        pthread_t thread;
        if (client == NULL || (client->socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0) {
            free(client);
            continue;
        }
        setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (pthread_create(&thread, &small, serve, client) != 0) {
            close(client->socket);
            free(client);
        }
    }
}
