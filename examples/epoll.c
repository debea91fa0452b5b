/* epoll.c - a server without MPI that watches other servers: Muster's descriptor in an event loop.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Start one on each node (or emulate nodes, as examples/README.md does). It prints a line for every event;
 * `wait N` ends the program when N nodes are alive, `until NAME` when that node has failed or left.
 *
 * Build:  cc -D_GNU_SOURCE epoll.c -o epoll $(pkg-config --cflags --libs muster)
 * Run:    MUSTER_JOB=servers ./epoll [wait N | until NAME]
 */
#include <muster.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <signal.h>
#include <unistd.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, muster_last_error_message());
    return 1;
}

/* Whether the condition in the arguments holds. */
static int is_over(muster_ctx_t *muster, int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "wait") == 0)
        return muster_nodes_in_state(muster, MUSTER_NODE_ALIVE) >= atoi(argv[2]);
    if (argc > 2 && strcmp(argv[1], "until") == 0) {
        int node = muster_node_find(muster, argv[2]);
        int state = node < 0 ? node : muster_node_state(muster, (uint32_t)node);
        return state == MUSTER_NODE_FAILED || state == MUSTER_NODE_LEFT;
    }
    return 0;
}

/* Takes all events, so that the descriptor is no longer readable. */
static int take_events(muster_ctx_t *muster)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[256];
    int taken;
    while ((taken = muster_next_event(muster, &event)) > 0) {
        muster_event_describe(muster, &event, text, sizeof text);
        puts(text);
    }
    fflush(stdout);
    return taken;
}

int main(int argc, char **argv)
{
    muster_ctx_t *muster;
    sigset_t ending;
    if (muster_init(NULL, &muster) < 0)
        return fail("muster_init");

    /* On a signal, leave in order: the other servers see LEFT, not FAILED. */
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigprocmask(SIG_BLOCK, &ending, NULL);

    int loop = epoll_create1(EPOLL_CLOEXEC);
    int signals = signalfd(-1, &ending, SFD_CLOEXEC);
    struct epoll_event news = {EPOLLIN, {.fd = muster_get_fd(muster)}}, end = {EPOLLIN, {.fd = signals}};
    if (loop < 0 || signals < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, news.data.fd, &news) < 0 ||
        epoll_ctl(loop, EPOLL_CTL_ADD, signals, &end) < 0) {
        perror("epoll");
        return 1;
    }

    while (!is_over(muster, argc, argv)) {
        struct epoll_event ready;
        int count = epoll_wait(loop, &ready, 1, 60000);
        if (count == 1 && ready.data.fd == signals)
            break;
        /* A real server handles its own descriptors here. */
        if (take_events(muster) < 0)
            fail("muster_next_event"); /* No agent answers now; the library looks for one. */
    }
    take_events(muster);
    return muster_finalize(muster) < 0 ? fail("muster_finalize") : 0;
}
