/* A rank whose agent is killed, supervisor and worker, while no other agent can be started for some time; with a
 * thread of the library or, with the argument "alone", without one. Then one whose agent's worker is killed until the
 * supervisor gives up. MUSTER_AGENT is a symbolic link, which this program removes and restores. Exit code 0 if all
 * checks pass. */
#include "agents.h"

#define DEADLINE_MS 60000
#define ALIVE MUSTER_STATE(MUSTER_RANK_ALIVE)

static const char *program;
static int is_alone;

static muster_ctx_t *attach(int rank)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "agent_lost.c";
    config.node = "here";
    config.rank = rank;
    config.ranks = 2;
    config.flags = is_alone ? MUSTER_NO_THREAD : 0;
    int status = muster_init(&config, &context);
    if (status < 0 && status != MUSTER_ERR_AGENT_REFUSED)
        printf("rank %d: %s: %s\n", rank, muster_strerror(status), muster_last_error_message());
    return context;
}

/* --------------------------------------------------------------------------------- lost and found */

static void expect_text(const char *what, const char *part)
{
    if (!strstr(what, part)) {
        printf("%s: lacks \"%s\"\n", what, part);
        failures++;
    }
}

/* Takes events until the agent is reported lost; calls `meanwhile` between two polls. */
static void await_lost(muster_ctx_t *context, void (*meanwhile)(void))
{
    muster_event_t event = MUSTER_EVENT_INIT;
    int status = 0;
    for (int looks = 0; status >= 0 && looks < DEADLINE_MS / 50; looks++) {
        if (meanwhile)
            meanwhile();
        status = muster_poll_events(context, &event, 1, 50);
    }
    CHECK(status == MUSTER_ERR_AGENT_LOST);
    CHECK(strcmp(muster_error_name(status), "MUSTER_ERR_AGENT_LOST") == 0);
}

static void note(muster_ctx_t *context, const muster_event_t *event, void *found)
{
    (void)context;
    if (event->kind == MUSTER_EVENT_OVERFLOW && event->cause == MUSTER_CAUSE_NEW_AGENT) {
        CHECK(event->lost == 0);
        ++*(int *)found;
    }
}

/* Looks for another agent until there is one. Exactly one event must report it. */
static void await_found(muster_ctx_t *context)
{
    int found = 0;
    for (int looks = 0; !found && looks < DEADLINE_MS / 50; looks++) {
        muster_event_t event = MUSTER_EVENT_INIT;
        (void)muster_dispatch(context, note, &found);
        if (!found && muster_poll_events(context, &event, 1, 50) == 1)
            note(context, &event, &found);
    }
    CHECK(found == 1);
    CHECK(muster_wait_node(context, 0, MUSTER_STATE(MUSTER_NODE_ALIVE), DEADLINE_MS) == MUSTER_NODE_ALIVE);
    CHECK(muster_node_find(context, "here") == muster_my_node(context));
}

/* Without an agent, calls that read memory succeed, and calls that need the agent fail with AGENT_LOST. */
static void check_lost(muster_ctx_t *context, const char *reason, const char *hint)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[64];
    CHECK(muster_next_event(context, &event) == MUSTER_ERR_AGENT_LOST);
    expect_text(muster_last_error_message(), reason);
    expect_text(muster_last_error_message(), hint);
    CHECK(muster_poll_events(context, &event, 1, 0) == MUSTER_ERR_AGENT_LOST);
    CHECK(muster_dispatch(context, note, NULL) == MUSTER_ERR_AGENT_LOST);
    CHECK(muster_publish(context, "k", "v", 1) == MUSTER_ERR_AGENT_LOST);
    CHECK(muster_why(context, 0, text, sizeof text) == MUSTER_ERR_AGENT_LOST);
    CHECK(muster_rank_state(context, 0) >= MUSTER_RANK_ALIVE && muster_my_node(context) == 0);
    CHECK(muster_wait_rank(context, 1, MUSTER_STATE(MUSTER_RANK_FAILED), 0) == MUSTER_ERR_TIMEOUT);
    CHECK(muster_tick(context) == MUSTER_OK && muster_get_fd(context) >= 0);
}

/* The second agent knows the promise of ticks that the first one got. */
static void check_promise(muster_ctx_t *context)
{
    CHECK(muster_wait_rank(context, 0, MUSTER_STATE(MUSTER_RANK_HUNG), DEADLINE_MS) == MUSTER_RANK_HUNG);
    CHECK(muster_tick_every(context, 0) == MUSTER_OK);
    CHECK(muster_wait_rank(context, 0, ALIVE, DEADLINE_MS) == MUSTER_RANK_ALIVE);
}

/* Starts another rank, which starts an agent if it finds none. */
static pid_t start_other(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, "other", (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0);
    return child;
}

/* Every call of a forked child returns FORKED, with a thread of the library or without, and its end is not reported as
 * the end of this rank: it must have had no effect when a later event, another rank's end, arrives. */
static void check_fork(muster_ctx_t *context)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        check_context(context, MUSTER_ERR_FORKED);
        _exit(failures != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    child = start_other();
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(muster_wait_rank(context, 1, MUSTER_STATE(MUSTER_RANK_LEFT), DEADLINE_MS) == MUSTER_RANK_LEFT);
    CHECK(muster_rank_state(context, 0) == MUSTER_RANK_ALIVE);
}

static void kill_worker(void)
{
    pid_t worker;
    if (find_agent("here", &worker, 1, 1) == 1)
        kill(worker, SIGKILL);
}

static int be_the_other(void)
{
    muster_ctx_t *context = NULL;
    /* A supervisor that gave up refuses all clients for a while. */
    for (int looks = 0; !context && looks < DEADLINE_MS / 50; looks++, usleep(50000))
        context = attach(1);
    CHECK(context && muster_wait_ranks(context, 2, ALIVE, DEADLINE_MS) == 2);
    CHECK(context && muster_finalize(context) == MUSTER_OK);
    return failures != 0;
}

/* Ranks do not restart an agent that keeps crashing, and report why. They find an agent that another process starts. */
static void check_crashing(muster_ctx_t *context)
{
    int status = -1;
    await_lost(context, kill_worker);
    check_lost(context, "the worker died 5 times", "see its log");
    pid_t other = start_other();
    await_found(context);
    CHECK(waitpid(other, &status, 0) == other && status == 0);
}

int main(int count, char **arguments)
{
    const char *link = getenv("MUSTER_AGENT");
    char agent[4096] = "";
    uint64_t again = 0;
    program = arguments[0];
    if (count > 1 && strcmp(arguments[1], "other") == 0)
        return be_the_other();
    is_alone = count > 1;
    CHECK(link && readlink(link, agent, sizeof agent - 1) > 0);
    muster_ctx_t *context = attach(0);
    if (!context || failures)
        return 1;
    CHECK(muster_wait_rank(context, 0, ALIVE, DEADLINE_MS) == MUSTER_RANK_ALIVE);
    check_fork(context);
    CHECK(muster_tick_every(context, 100) == MUSTER_OK);

    CHECK(unlink(link) == 0);
    kill_agent("here");
    await_lost(context, NULL);
    check_lost(context, link, "is lost after");
    CHECK(symlink(agent, link) == 0);
    await_found(context);
    CHECK(muster_counter(context, "agents_found_again", &again) == MUSTER_OK && again == 1);
    check_promise(context);
    if (!is_alone)
        check_crashing(context);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
