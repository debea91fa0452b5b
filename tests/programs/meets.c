/* An MPI program whose agents run age gossip and know only the number of nodes. The addresses of the others
 * come through PMIx or, with "records" as second argument, by muster_mpi_init, on emulated nodes of two ranks
 * in the net of the variable MEETS_NET. Then each rank exchanges messages with the rank half of the job away,
 * and their messages carry gossip, until some has arrived on every node.
 *
 * Lines on standard output: "READY rank" once all nodes are alive, "CARRIED rank name=number ...", "FAIL
 * rank: what". */
#define _GNU_SOURCE
#include <mpi.h>
#include <muster.h>
#include <muster_mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEADLINE_MS 60000
#define ENOUGH 5
#define ROUNDS 200

static int rank = -1, size;
static char answer[65536];

static void fail(const char *what)
{
    printf("FAIL %d: %s: %s\n", rank, what, muster_last_error_message());
    fflush(stdout);
    _exit(1);
}

/* The number after this key in the agent's last answer. */
static unsigned long number(const char *name)
{
    char key[64], *found;
    snprintf(key, sizeof key, "\"%s\"", name);
    found = strstr(answer, key);
    if (!found)
        fail(name);
    found += strlen(key);
    found += strcspn(found, "0123456789");
    return strtoul(found, NULL, 10);
}

static void request(muster_ctx_t *muster, const char *what)
{
    if (muster_control(muster, what, answer, sizeof answer) < 0)
        fail(what);
}

/* Sends a message to the partner and receives one, each with the agent's piggyback. */
static void exchange(muster_ctx_t *muster, int partner)
{
    struct {
        int extra;
        char gossip[MUSTER_PIGGYBACK_MAX];
    } out = {0}, in = {0};
    int extra = muster_piggyback_fill(muster, (uint32_t)partner, out.gossip, sizeof out.gossip);
    if (extra < 0 && extra != MUSTER_ERR_NO_SUCH_RANK)
        fail("muster_piggyback_fill");
    out.extra = extra < 0 ? 0 : extra;
    MPI_Sendrecv(&out, sizeof out, MPI_BYTE, partner, 1, &in, sizeof in, MPI_BYTE, partner, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    if (in.extra > 0 && muster_piggyback_deliver(muster, (uint32_t)partner, in.gossip, (size_t)in.extra) < 0)
        fail("muster_piggyback_deliver");
}

/* Whether gossip was carried to and from every node: all ranks get the same answer. */
static int is_enough(muster_ctx_t *muster)
{
    int here, all = 0;
    request(muster, "stats");
    here = number("gossips_carried") >= ENOUGH && number("gossips_piggybacked") >= ENOUGH;
    MPI_Allreduce(&here, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

/* Two ranks per node, each node with an address of its own. */
static void emulate_nodes(const char *net)
{
    char text[64];
    snprintf(text, sizeof text, "n%d", rank / 2);
    setenv("MUSTER_NODE", text, 1);
    snprintf(text, sizeof text, "127.%s.%d:7951@udp0", net, rank / 2 + 1);
    setenv("MUSTER_RAILS", text, 1);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"gossips_offered", "piggyback_taken", "gossips_piggybacked", "pings_sent"};
    muster_ctx_t *muster = NULL;
    uint32_t nodes = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    const char *net = getenv("MEETS_NET");
    int records = argc > 2 && net && strcmp(argv[2], "records") == 0, partner, status, tries = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (records)
        emulate_nodes(net);
    status = records ? muster_mpi_init(MPI_COMM_WORLD, NULL, &muster) : muster_init(NULL, &muster);
    if (status < 0)
        fail(muster_strerror(status));
    while (muster_node_count(muster) < (int)nodes && ++tries < DEADLINE_MS / 10)
        usleep(10000);
    for (uint32_t node = 0; node < nodes; node++)
        if (muster_wait_node(muster, node, MUSTER_STATE(MUSTER_NODE_ALIVE), DEADLINE_MS) < 0)
            fail("muster_wait_node");
    /* No node appears twice, and the protocol is age gossip. */
    if (muster_node_count(muster) != (int)nodes)
        fail("too many nodes");
    request(muster, "gossip");
    if (!strstr(answer, "\"running\":true"))
        fail(answer);
    printf("READY %d\n", rank);
    fflush(stdout);
    partner = (rank + size / 2) % size;
    for (int round = 0; round % ROUNDS || !is_enough(muster); round++) {
        exchange(muster, partner);
        usleep(1000);
    }
    request(muster, "stats");
    /* In one write: MPICH does not buffer, and the compiler makes two of printf("%s\n"). */
    char line[512];
    int length = snprintf(line, sizeof line, "CARRIED %d", rank);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        length += snprintf(line + length, sizeof line - (size_t)length, " %s=%lu", names[i], number(names[i]));
    snprintf(line + length, sizeof line - (size_t)length, "\n");
    fputs(line, stdout);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    muster_finalize(muster);
    MPI_Finalize();
    return 0;
}
