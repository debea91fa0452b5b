/* A C program with a real agent: two ranks on one node, one of which is killed. It uses only the public API. Exit
 * code 0 if all checks pass. */
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_S 30

static muster_ctx_t *attach(int rank, uint32_t flags)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "right_use.c";
    config.node = "here";
    config.rank = rank;
    config.ranks = 2;
    config.flags = flags;
    int status = muster_init(&config, &context);
    if (status < 0)
        printf("rank %d: %s: %s\n", rank, muster_strerror(status), muster_last_error_message());
    return context;
}

/* Polls the descriptor for an event of this kind about this rank. */
static int await_event(muster_ctx_t *context, int kind, uint32_t rank, muster_event_t *event)
{
    struct pollfd ready = {muster_get_fd(context), POLLIN, 0};
    time_t give_up = time(NULL) + DEADLINE_S;
    while (time(NULL) < give_up) {
        while (muster_next_event(context, event) > 0)
            if (event->kind == kind && event->rank == rank)
                return 1;
        if (poll(&ready, 1, 1000) < 0 && errno != EINTR)
            return 0;
    }
    return 0;
}

/* Rank 1: runs until it is killed. */
static void be_the_victim(void)
{
    if (!attach(1, 0))
        _exit(3);
    for (;;)
        pause();
}

static void check_view(muster_ctx_t *context)
{
    char name[4], text[64];
    uint64_t epoch = 0;
    int node = muster_my_node(context);
    CHECK(node >= 0);
    CHECK(muster_my_rank(context) == 0);
    CHECK(muster_rank_count(context) == 2);
    CHECK(muster_node_count(context) == 1);
    CHECK(muster_rank_node(context, 1) == node);
    CHECK(muster_node_state(context, (uint32_t)node) == MUSTER_NODE_ALIVE);
    CHECK(muster_nodes_in_state(context, MUSTER_NODE_ALIVE) == 1);
    CHECK(muster_epoch(context, &epoch) == MUSTER_OK && epoch > 0);

    CHECK(muster_node_name(context, (uint32_t)node, name, sizeof name) == 4);
    CHECK(strcmp(name, "her") == 0);
    CHECK(muster_node_name(context, (uint32_t)node, NULL, 0) == 4);
    CHECK(muster_node_name(context, (uint32_t)node, NULL, 9) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_name(context, 1000, text, sizeof text) == MUSTER_ERR_NO_SUCH_NODE);
    CHECK(muster_node_group(context, (uint32_t)node, text, sizeof text) == 0 && text[0] == 0);
    CHECK(muster_node_group(context, 1000, text, sizeof text) == MUSTER_ERR_NO_SUCH_NODE);
    CHECK(muster_node_state(context, 1000) == MUSTER_ERR_NO_SUCH_NODE);
    CHECK(muster_rank_state(context, 2) == MUSTER_ERR_NO_SUCH_RANK);
    CHECK(muster_rank_state(context, UINT32_MAX) == MUSTER_ERR_NO_SUCH_RANK);
    CHECK(muster_rank_node(context, 2) == MUSTER_ERR_NO_SUCH_RANK);
    CHECK(muster_nodes_in_state(context, 6) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_ranks_in_state(context, -1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_epoch(context, NULL) == MUSTER_ERR_ARGUMENT);
}

static void check_death(muster_ctx_t *context, pid_t victim)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[256] = "";
    uint32_t node = MUSTER_NONE;
    CHECK(kill(victim, SIGKILL) == 0);
    CHECK(await_event(context, MUSTER_EVENT_RANK_FAILED, 1, &event));
    CHECK(muster_rank_state(context, 1) == MUSTER_RANK_FAILED);
    CHECK(muster_ranks_in_state(context, MUSTER_RANK_FAILED) == 1);
    CHECK(muster_rank_state(context, 0) == MUSTER_RANK_ALIVE);
    CHECK(event.delivered_ns >= event.verdict_ns && event.verdict_ns > 0);
    CHECK(muster_event_describe(context, &event, text, sizeof text) > 0);
    CHECK(strstr(text, "rank 1 on here FAILED: ") == text);
    CHECK(muster_event_nodes(context, &event, NULL, 0) == 1);
    CHECK(muster_event_nodes(context, &event, &node, 1) == 1 && node == event.node);
    CHECK(muster_event_nodes(context, &event, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_event_nodes(context, NULL, &node, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_event_describe(context, &event, text, 5) > 5 && strcmp(text, "rank") == 0);
    CHECK(waitpid(victim, NULL, 0) == victim);
}

static int called;

static void call_back(muster_ctx_t *context, const muster_event_t *event, void *argument)
{
    CHECK(argument == &called);
    CHECK(event->struct_size == sizeof *event);
    CHECK(muster_finalize(context) == MUSTER_ERR_BUSY);
    CHECK(muster_dispatch(context, ignore, NULL) == MUSTER_ERR_BUSY);
    CHECK(muster_rank_state(context, 0) == MUSTER_RANK_ALIVE);
    called++;
}

/* Every call of a forked child returns FORKED, and its parent is not affected. */
static void check_fork(muster_ctx_t *context)
{
    pid_t child = fork();
    if (child == 0) {
        muster_ctx_t *other = context;
        failures = 0;
        check_context(context, MUSTER_ERR_FORKED);
        CHECK(muster_init(NULL, &other) == MUSTER_ERR_FORKED && other == NULL);
        fflush(stdout);
        _exit(failures != 0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(muster_rank_state(context, 0) == MUSTER_RANK_ALIVE);
}

/* A child that is forked after its parent has left may connect for itself. */
static void check_fork_after_finalize(void)
{
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        muster_ctx_t *own = attach(0, 0);
        CHECK(own != NULL && muster_finalize(own) == MUSTER_OK);
        fflush(stdout);
        _exit(failures != 0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    /* Forked before this process attaches, so it may connect for itself. */
    pid_t victim = fork();
    if (victim == 0)
        be_the_victim();

    muster_ctx_t *context = attach(0, 0);
    CHECK(context != NULL);
    if (!context)
        return 1;
    CHECK(attach(0, 0) == context);

    muster_event_t event = MUSTER_EVENT_INIT;
    if (muster_rank_state(context, 1) != MUSTER_RANK_ALIVE)
        CHECK(await_event(context, MUSTER_EVENT_RANK_UP, 1, &event));
    if (muster_rank_state(context, 0) != MUSTER_RANK_ALIVE)
        CHECK(await_event(context, MUSTER_EVENT_RANK_UP, 0, &event));
    check_view(context);
    check_fork(context);
    check_death(context, victim);

    /* Counted: after the first finalize the connection works, after the second one it does not. */
    CHECK(muster_finalize(context) == MUSTER_OK);
    CHECK(muster_rank_state(context, 0) == MUSTER_RANK_ALIVE);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);

    /* Again, without a thread: earlier events are not repeated, new ones are reported. */
    CHECK(attach(0, MUSTER_NO_THREAD) == context);
    struct pollfd ready = {muster_get_fd(context), POLLIN, 0};
    time_t give_up = time(NULL) + DEADLINE_S;
    while (called == 0 && time(NULL) < give_up) {
        CHECK(poll(&ready, 1, 1000) >= 0);
        CHECK(muster_dispatch(context, call_back, &called) >= 0);
    }
    CHECK(called > 0);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_fork_after_finalize();
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
