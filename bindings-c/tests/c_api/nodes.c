/* Ranks on emulated nodes, and the events of nodes: one with different settings, one that other members declared
 * failed, a group that fails together, and a minority. Exit code 0 if all checks pass. The first argument is the net
 * of the nodes' addresses, as in 127.97.1; the other processes run this program again, with their rank as second
 * argument. */
#include "agents.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define DEADLINE_MS 60000
#define RANK_ALIVE MUSTER_STATE(MUSTER_RANK_ALIVE)

enum { SELF, SECOND, THIRD, OTHER_SETTINGS, NODES };

static const char *program, *net;

/* Rank 0 runs on n1 and so on; the second and the third node share a rack. */
static muster_ctx_t *attach(int rank)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    char node[16], rail[64], seeds[256] = "";
    for (int i = 1; i <= NODES; i++)
        snprintf(seeds + strlen(seeds), sizeof seeds - strlen(seeds), "%s.%d@udp0 ", net, i);
    snprintf(node, sizeof node, "n%d", rank + 1);
    snprintf(rail, sizeof rail, "%s.%d@udp0", net, rank + 1);
    setenv("MUSTER_NODE", node, 1);
    setenv("MUSTER_RAILS", rail, 1);
    setenv("MUSTER_SEEDS", seeds, 1);
    setenv("MUSTER_GROUP", rank == SECOND || rank == THIRD ? "rack" : "", 1);
    /* One second of silence, so that a busy machine does not cause a failure. */
    setenv("MUSTER_PROFILE", rank == OTHER_SETTINGS ? "standard" : "quiet", 1);
    config.job = "nodes.c";
    config.rank = rank;
    config.ranks = NODES;
    int status = muster_init(&config, &context);
    if (status < 0)
        printf("rank %d: %s: %s\n", rank, muster_strerror(status), muster_last_error_message());
    return context;
}

static void write_key(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/key", getenv("MUSTER_DIR"));
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    for (int i = 0; i < 32; i++)
        CHECK(write(file, "5c", 2) == 2);
    close(file);
    setenv("MUSTER_KEY_FILE", path, 1);
}

/* Starts a rank on its own node. It writes a byte when it gets the event that its node is an outcast. */
static pid_t start(int rank, int *reported)
{
    int ends[2];
    char number[16], end[16];
    CHECK(pipe(ends) == 0);
    snprintf(number, sizeof number, "%d", rank);
    snprintf(end, sizeof end, "%d", ends[1]);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(program, program, net, number, end, (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0);
    close(ends[1]);
    if (reported)
        *reported = ends[0];
    else
        close(ends[0]);
    return child;
}

static int be(int rank, int end)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[256];
    muster_ctx_t *context = attach(rank);
    while (context && muster_poll_events(context, &event, 1, 1000) >= 0) {
        if (event.kind != MUSTER_EVENT_OUTCAST)
            continue;
        CHECK(muster_event_describe(context, &event, text, sizeof text) > 0 && strstr(text, "declared FAILED"));
        CHECK(strcmp(muster_event_name(event.kind), "OUTCAST") == 0);
        if (write(end, failures ? "?" : "!", 1) < 0)
            return 1;
        event.kind = 0;
    }
    return 1;
}

/* Takes events until there is one of this kind. */
static void await_event(muster_ctx_t *context, int kind, muster_event_t *event)
{
    event->kind = 0;
    for (int looks = 0; event->kind != kind && looks < DEADLINE_MS / 50; looks++)
        if (muster_poll_events(context, event, 1, 50) <= 0)
            event->kind = 0;
    CHECK(event->kind == kind);
}

static void expect_name(muster_ctx_t *context, uint32_t node, const char *expected)
{
    char name[256] = "";
    CHECK(muster_node_name(context, node, name, sizeof name) > 0);
    if (strcmp(name, expected) != 0) {
        printf("node %u is %s, not %s\n", node, name, expected);
        failures++;
    }
}

/* Stops the agent of a node, before the rank and then the agent are killed as by a power failure. Otherwise the agent
 * would report the end of its rank and leave in order, or the rank would outlive the agent and start another. */
static void stop(const char *node)
{
    CHECK(signal_agent(node, SIGSTOP) == 2);
}

static void end(pid_t rank, const char *node)
{
    CHECK(kill(rank, SIGKILL) == 0 && waitpid(rank, NULL, 0) == rank);
    kill_agent(node);
}

/* Messages of a node with another heartbeat are not accepted, and all members report that. */
static void check_refused(muster_ctx_t *context)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    pid_t other = start(OTHER_SETTINGS, NULL);
    await_event(context, MUSTER_EVENT_NODE_REFUSED, &event);
    CHECK(event.code == 2);
    expect_name(context, event.node, "n4");
    end(other, "n4");
}

/* A node that was declared failed learns that when it continues. */
static void check_outcast(muster_ctx_t *context, int reported)
{
    struct pollfd report = {reported, POLLIN, 0};
    char byte = 0;
    int node = muster_node_find(context, "n3");
    CHECK(node >= 0);
    CHECK(signal_agent("n3", SIGSTOP) == 2);
    CHECK(muster_wait_node(context, (uint32_t)node, MUSTER_STATE(MUSTER_NODE_FAILED), DEADLINE_MS) ==
          MUSTER_NODE_FAILED);
    CHECK(signal_agent("n3", SIGCONT) == 2);
    CHECK(poll(&report, 1, DEADLINE_MS) == 1 && read(reported, &byte, 1) == 1 && byte == '!');
    CHECK(muster_wait_node(context, (uint32_t)node, MUSTER_STATE(MUSTER_NODE_ALIVE), DEADLINE_MS) ==
          MUSTER_NODE_ALIVE);
}

/* Both nodes of a rack fail at once, which are more than half of all. */
static void check_rack(muster_ctx_t *context, pid_t second, pid_t third)
{
    muster_event_t event = MUSTER_EVENT_INIT, group = MUSTER_EVENT_INIT, few = MUSTER_EVENT_INIT;
    uint32_t nodes[4] = {MUSTER_NONE, MUSTER_NONE, MUSTER_NONE, MUSTER_NONE};
    char name[16];
    while (muster_next_event(context, &event) > 0)
        ;
    stop("n2");
    stop("n3");
    end(second, "n2");
    end(third, "n3");
    for (int looks = 0; (!group.kind || !few.kind) && looks < DEADLINE_MS / 50; looks++) {
        if (muster_poll_events(context, &event, 1, 50) <= 0)
            continue;
        if (event.kind == MUSTER_EVENT_GROUP_FAILED)
            group = event;
        if (event.kind == MUSTER_EVENT_MINORITY)
            few = event;
    }
    CHECK(group.kind == MUSTER_EVENT_GROUP_FAILED && group.count == 2 && group.total == 2);
    CHECK(muster_event_nodes(context, &group, nodes, 4) == 2);
    for (int i = 0; i < 2; i++) {
        CHECK(muster_node_state(context, nodes[i]) == MUSTER_NODE_FAILED);
        CHECK(muster_node_group(context, nodes[i], name, sizeof name) == 4 && strcmp(name, "rack") == 0);
    }
    CHECK(nodes[0] != nodes[1] && nodes[2] == MUSTER_NONE);
    CHECK(few.kind == MUSTER_EVENT_MINORITY && few.count == 1 && few.total == 3 && few.code == 0);
}

int main(int count, char **arguments)
{
    int reported = -1;
    program = arguments[0];
    net = count > 1 ? arguments[1] : "";
    if (count > 3)
        return be(atoi(arguments[2]), atoi(arguments[3]));
    write_key();
    pid_t second = start(SECOND, NULL), third = start(THIRD, &reported);
    muster_ctx_t *context = attach(SELF);
    if (!context)
        return 1;
    CHECK(muster_wait_ranks(context, 3, RANK_ALIVE, DEADLINE_MS) == 3);
    check_refused(context);
    check_outcast(context, reported);
    check_rack(context, second, third);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
