/* A C program that waits for states, copies them, promises ticks and leaves with an exit code: three
 * ranks on one node. Exit code 0 if all checks pass. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_MS 30000
#define ALIVE MUSTER_STATE(MUSTER_RANK_ALIVE)
#define ENDED (MUSTER_STATE(MUSTER_RANK_FAILED) | MUSTER_STATE(MUSTER_RANK_LEFT))

static muster_ctx_t *attach(int rank)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "states.c";
    config.node = "here";
    config.rank = rank;
    config.ranks = 3;
    int status = muster_init(&config, &context);
    if (status < 0)
        printf("rank %d: %s: %s\n", rank, muster_strerror(status), muster_last_error_message());
    return context;
}

/* Starts a rank that waits for a byte in the pipe, and then calls `act`. */
static pid_t start(int rank, int *go, void (*act)(muster_ctx_t *))
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        char order;
        close(ends[1]);
        muster_ctx_t *context = attach(rank);
        if (!context || read(ends[0], &order, 1) != 1)
            _exit(3);
        act(context);
        for (;;)
            pause();
    }
    close(ends[0]);
    *go = ends[1];
    return child;
}

static void leave(muster_ctx_t *context)
{
    _exit(muster_leave(context, 7) == MUSTER_OK ? 7 : 1);
}

static void promise(muster_ctx_t *context)
{
    if (muster_tick_every(context, 20) < 0)
        _exit(1);
}

static void *wait_for_end(void *context)
{
    return muster_wait_rank(context, 2, ENDED, DEADLINE_MS) == MUSTER_RANK_FAILED ? context : NULL;
}

static void check_copies(muster_ctx_t *context)
{
    uint8_t states[5] = {9, 9, 9, 9, 9};
    uint32_t ranks[2] = {9, 9};
    uint64_t before = 0, at = 0;
    CHECK(muster_epoch(context, &before) == MUSTER_OK);
    CHECK(muster_rank_states(context, states, sizeof states, &at) == 3);
    CHECK(at == before && states[0] == MUSTER_RANK_ALIVE && states[2] == MUSTER_RANK_ALIVE);
    CHECK(states[3] == 0 && states[4] == 0);
    states[1] = 9;
    CHECK(muster_rank_states(context, states, 1, NULL) == 3 && states[1] == 9);
    CHECK(muster_rank_states(context, NULL, 0, NULL) == 3);
    CHECK(muster_rank_states(context, NULL, 1, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_states(context, states, sizeof states, &at) == 1 && states[0] == MUSTER_NODE_ALIVE);
    CHECK(muster_node_find(context, "here") == muster_my_node(context));
    CHECK(muster_node_find(context, "there") == MUSTER_ERR_NO_SUCH_NODE);
    CHECK(muster_node_find(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_ranks(context, 0, ranks, 2) == 3 && ranks[0] == 0 && ranks[1] == 1);
    CHECK(muster_node_ranks(context, 0, NULL, 2) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_ranks(context, 5, ranks, 2) == MUSTER_ERR_NO_SUCH_NODE);
}

/* A job that is not divided is one zone with all nodes. */
static void check_zone(muster_ctx_t *context)
{
    char name[4] = "";
    uint32_t nodes[2] = {9, 9};
    CHECK(muster_zone_count(context) == 1);
    CHECK(muster_node_zone(context, 0) == 0 && muster_rank_zone(context, 2) == 0);
    CHECK(muster_node_zone(context, 5) == MUSTER_ERR_NO_SUCH_NODE);
    CHECK(muster_rank_zone(context, 77) == MUSTER_ERR_NO_SUCH_RANK);
    CHECK(muster_zone_name(context, 0, name, sizeof name) == 1 && strcmp(name, "/") == 0);
    CHECK(muster_zone_nodes(context, 0, nodes, 2) == 1 && nodes[0] == 0 && nodes[1] == 9);
    CHECK(muster_zone_nodes_in_state(context, 0, MUSTER_NODE_ALIVE) == 1);
    CHECK(muster_zone_nodes_in_state(context, 0, MUSTER_NODE_FAILED) == 0);
    CHECK(muster_zone_name(context, 1, name, sizeof name) == MUSTER_ERR_NO_SUCH_ZONE);
    CHECK(muster_zone_nodes(context, 1, nodes, 2) == MUSTER_ERR_NO_SUCH_ZONE);
    CHECK(muster_zone_nodes_in_state(context, UINT32_MAX, 1) == MUSTER_ERR_NO_SUCH_ZONE);
    CHECK(strstr(muster_last_error_message(), "the job is one zone") != NULL);
}

static void check_why(muster_ctx_t *context)
{
    char text[512] = "";
    int length = muster_why(context, 0, text, sizeof text);
    CHECK(length > 0 && strstr(text, "here is alive: ") == text && strchr(text, '\n') != NULL);
    CHECK(muster_why(context, 0, text, 5) == length && strcmp(text, "here") == 0);
    CHECK(muster_why(context, 0, NULL, 5) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_why(context, 77, text, sizeof text) == MUSTER_ERR_NO_SUCH_NODE);
}

static void check_bad_waits(muster_ctx_t *context)
{
    CHECK(muster_wait_rank(context, 0, 0, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_wait_rank(context, 0, MUSTER_STATE(5), 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_wait_node(context, 0, MUSTER_STATE(6), 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_wait_node(context, 5, MUSTER_STATE(MUSTER_NODE_ALIVE), 1) == MUSTER_ERR_TIMEOUT);
    CHECK(muster_wait_rank(context, 0, ENDED, 0) == MUSTER_ERR_TIMEOUT);
    CHECK(strstr(muster_last_error_message(), "rank 0") != NULL);
    CHECK(muster_wait_ranks(context, 4, ALIVE, 1) == MUSTER_ERR_TIMEOUT);
    CHECK(muster_leave(context, 256) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_leave(context, -1) == MUSTER_ERR_ARGUMENT);
}

/* Takes events until one of this kind about this rank; 0 if there is none. */
static int find_event(muster_ctx_t *context, int kind, uint32_t rank, muster_event_t *event)
{
    while (muster_next_event(context, event) > 0)
        if (event->kind == kind && event->rank == rank)
            return 1;
    return 0;
}

int main(void)
{
    int leave_now = -1, promise_now = -1;
    pid_t leaver = start(1, &leave_now, leave);
    pid_t dawdler = start(2, &promise_now, promise);
    muster_ctx_t *context = attach(0);
    muster_event_t event = MUSTER_EVENT_INIT;
    if (!context)
        return 1;
    CHECK(muster_wait_ranks(context, 3, ALIVE, DEADLINE_MS) == 3);
    check_copies(context);
    check_zone(context);
    check_why(context);
    check_bad_waits(context);
    while (muster_next_event(context, &event) > 0)
        ;

    CHECK(write(leave_now, "x", 1) == 1);
    CHECK(muster_wait_rank(context, 1, ENDED, DEADLINE_MS) == MUSTER_RANK_LEFT);
    CHECK(find_event(context, MUSTER_EVENT_RANK_LEFT, 1, &event) && event.code == 7);
    CHECK(waitpid(leaver, NULL, 0) == leaver);

    CHECK(write(promise_now, "x", 1) == 1);
    CHECK(muster_wait_rank(context, 2, MUSTER_STATE(MUSTER_RANK_HUNG), DEADLINE_MS) == MUSTER_RANK_HUNG);
    CHECK(find_event(context, MUSTER_EVENT_RANK_HUNG, 2, &event) && event.cause == MUSTER_CAUSE_NO_TICK);
    char text[128] = "";
    CHECK(muster_event_describe(context, &event, text, sizeof text) > 0 && strstr(text, "no tick"));

    /* Two more threads wait for the end of this rank. */
    pthread_t waiting[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&waiting[i], NULL, wait_for_end, context) == 0);
    CHECK(kill(dawdler, SIGKILL) == 0);
    CHECK(muster_wait_rank(context, 2, ENDED, DEADLINE_MS) == MUSTER_RANK_FAILED);
    for (int i = 0; i < 2; i++) {
        void *found = NULL;
        CHECK(pthread_join(waiting[i], &found) == 0 && found == context);
    }
    CHECK(waitpid(dawdler, NULL, 0) == dawdler);
    CHECK(muster_tick_every(context, 0) == MUSTER_OK && muster_tick(context) == MUSTER_OK);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
