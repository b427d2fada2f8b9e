/* A relay of TCP connections with a delay and a rate, each of one direction; the rate is that of all connections together.
 *
 * usage: relay FROM-PORT TO-PORT DELAY-US RATE-BYTES-PER-S     (on 127.0.0.1; rate 0: none)
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 64 << 10, QUEUE_MAX = 64 << 20 };

static int64_t delay_ns, rate;

/* A direction of all connections: when its line is free again. */
struct line {
    pthread_mutex_t lock;
    int64_t free_at;
};
static struct line lines[2] = {{PTHREAD_MUTEX_INITIALIZER, 0}, {PTHREAD_MUTEX_INITIALIZER, 0}};

struct chunk {
    struct chunk *next;
    int64_t due;
    ssize_t len;
    char bytes[CHUNK];
};

struct pipe {
    int from, to;
    struct line *line;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct chunk *first, **last;
    size_t bytes;
};

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* When bytes that come now arrive at the other end. */
static int64_t due(struct line *line, ssize_t len) {
    pthread_mutex_lock(&line->lock);
    int64_t begins = now();
    if (line->free_at > begins)
        begins = line->free_at;
    line->free_at = begins + (rate ? len * 1000000000LL / rate : 0);
    int64_t at = line->free_at + delay_ns;
    pthread_mutex_unlock(&line->lock);
    return at;
}

static void *fill(void *given) {
    struct pipe *pipe = given;
    for (;;) {
        struct chunk *chunk = malloc(sizeof *chunk);
        chunk->next = NULL;
        chunk->len = read(pipe->from, chunk->bytes, CHUNK);
        int is_end = chunk->len <= 0;
        chunk->due = due(pipe->line, is_end ? 0 : chunk->len);
        pthread_mutex_lock(&pipe->lock);
        while (pipe->bytes > QUEUE_MAX)
            pthread_cond_wait(&pipe->changed, &pipe->lock);
        *pipe->last = chunk;
        pipe->last = &chunk->next;
        pipe->bytes += is_end ? 0 : chunk->len;
        pthread_cond_broadcast(&pipe->changed);
        pthread_mutex_unlock(&pipe->lock);
        if (is_end)
            return NULL;
    }
}

static void *drain(void *given) {
    struct pipe *pipe = given;
    for (;;) {
        pthread_mutex_lock(&pipe->lock);
        while (!pipe->first)
            pthread_cond_wait(&pipe->changed, &pipe->lock);
        struct chunk *chunk = pipe->first;
        pipe->first = chunk->next;
        if (!pipe->first)
            pipe->last = &pipe->first;
        if (chunk->len > 0)
            pipe->bytes -= chunk->len;
        pthread_cond_broadcast(&pipe->changed);
        pthread_mutex_unlock(&pipe->lock);
        struct timespec at = {chunk->due / 1000000000LL, chunk->due % 1000000000LL};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) {
        }
        ssize_t done = 0;
        while (done < chunk->len) {
            ssize_t wrote = write(pipe->to, chunk->bytes + done, chunk->len - done);
            if (wrote <= 0)
                break;
            done += wrote;
        }
        int is_end = chunk->len <= 0 || done < chunk->len;
        free(chunk);
        if (is_end) {
            /* Half of a connection may be closed; one that broke ends wholly. The few that are left of it are not freed. */
            shutdown(pipe->to, SHUT_WR);
            shutdown(pipe->from, SHUT_RD);
            return NULL;
        }
    }
}

static void pass(int from, int to, struct line *line) {
    struct pipe *pipe = calloc(1, sizeof *pipe);
    pipe->from = from;
    pipe->to = to;
    pipe->line = line;
    pipe->last = &pipe->first;
    pthread_mutex_init(&pipe->lock, NULL);
    pthread_cond_init(&pipe->changed, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, fill, pipe);
    pthread_detach(thread);
    pthread_create(&thread, NULL, drain, pipe);
    pthread_detach(thread);
}

static struct sockaddr_in at_port(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

int main(int count, char **given) {
    if (count != 5) {
        fprintf(stderr, "usage: relay FROM-PORT TO-PORT DELAY-US RATE-BYTES-PER-S\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    delay_ns = atoll(given[3]) * 1000;
    rate = atoll(given[4]);
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in from = at_port(given[1]), to = at_port(given[2]);
    if (bind(listener, (struct sockaddr *)&from, sizeof from) || listen(listener, 128)) {
        perror("relay");
        return 1;
    }
    for (;;) {
        int near = accept(listener, NULL, NULL), far = socket(AF_INET, SOCK_STREAM, 0);
        if (near < 0 || connect(far, (struct sockaddr *)&to, sizeof to)) {
            close(near);
            close(far);
            continue;
        }
        setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        pass(near, far, &lines[0]);
        pass(far, near, &lines[1]);
    }
}
