/* An MPI program whose ranks exchange messages across nodes all the time: with the rank half of the job away,
 * in turns by MPI_Sendrecv and by requests. The agent's counters show what its messages save. With a number
 * as argument they go on until messages have replaced more than that many heartbeats on each node.
 *
 * Lines on standard output: "READY rank", "STATS rank name=number ...", "GONE rank: what", "DONE rank", "FAIL
 * rank: what". The test stops the node of the upper half of the ranks when all are ready. */
#define _GNU_SOURCE
#include <mpi.h>
#include <muster.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEADLINE_MS 60000
#define ROUNDS 1500

static int rank = -1, size;

static void fail(const char *what)
{
    printf("FAIL %d: %s: %s\n", rank, what, muster_last_error_message());
    fflush(stdout);
    _exit(1);
}

static void exchange(MPI_Comm comm, int partner, int round)
{
    int out = round, in = -1;
    if (round % 2) {
        MPI_Sendrecv(&out, 1, MPI_INT, partner, 1, &in, 1, MPI_INT, partner, 1, comm, MPI_STATUS_IGNORE);
    } else {
        MPI_Request requests[2];
        MPI_Irecv(&in, 1, MPI_INT, MPI_ANY_SOURCE, 2, comm, &requests[0]);
        MPI_Isend(&out, 1, MPI_INT, partner, 2, comm, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
    if (in != round)
        fail("a wrong message arrived");
}

static unsigned long counter(muster_ctx_t *muster, const char *name)
{
    static char answer[65536];
    char key[64], *found;
    if (muster_control(muster, "stats", answer, sizeof answer) < 0)
        fail("muster_control");
    snprintf(key, sizeof key, "\"%s\"", name);
    found = strstr(answer, key);
    if (!found)
        fail(name);
    found += strlen(key);
    found += strcspn(found, "0123456789");
    return strtoul(found, NULL, 10);
}

static void print_stats(muster_ctx_t *muster)
{
    static const char *const names[] = {"beats_sent", "beats_left_out", "beats_stood_in", "probes_sent"};
    /* In one write, so that lines of different ranks do not mix: the compiler makes two of printf("%s\n"). */
    char line[512];
    int length = snprintf(line, sizeof line, "STATS %d", rank);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        length += snprintf(line + length, sizeof line - (size_t)length, " %s=%lu", names[i], counter(muster, names[i]));
    snprintf(line + length, sizeof line - (size_t)length, "\n");
    fputs(line, stdout);
    fflush(stdout);
}

/* Whether it holds on all nodes: all ranks get the same answer. */
static int is_enough(muster_ctx_t *muster, unsigned long beats)
{
    int here = counter(muster, "beats_left_out") > beats && counter(muster, "beats_stood_in") > beats, all = 0;
    MPI_Allreduce(&here, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    muster_ctx_t *muster = NULL;
    muster_event_t event = MUSTER_EVENT_INIT;
    MPI_Comm reversed;
    char text[256];
    unsigned long beats = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    int partner, node;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (muster_init(NULL, &muster) < 0)
        fail("muster_init");
    if (muster_wait_ranks(muster, (uint32_t)size, MUSTER_STATE(MUSTER_RANK_ALIVE), DEADLINE_MS) != size)
        fail("not all ranks are alive");
    /* Ranks in a different order than in the job, so that they must be translated. */
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    partner = (rank + size / 2) % size;
    for (int round = 0; round < ROUNDS || (beats && (round % ROUNDS || !is_enough(muster, beats))); round++) {
        if (round % 4 < 2)
            exchange(MPI_COMM_WORLD, partner, round);
        else
            exchange(reversed, size - 1 - partner, round);
        usleep(1000);
    }
    print_stats(muster);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("READY %d\n", rank);
    fflush(stdout);
    if (rank != 0)
        while (1)
            pause();
    node = muster_rank_node(muster, (uint32_t)partner);
    if (node < 0 || muster_wait_node(muster, (uint32_t)node, MUSTER_STATE(MUSTER_NODE_FAILED), DEADLINE_MS) < 0)
        fail("the silent node was not detected");
    while (muster_next_event(muster, &event) > 0)
        if (event.kind == MUSTER_EVENT_NODE_FAILED && event.node == (uint32_t)node) {
            muster_event_describe(muster, &event, text, sizeof text);
            printf("GONE %d: silent_us=%u %s\n", rank, event.silent_us, text);
        }
    printf("DONE %d\n", rank);
    fflush(stdout);
    _exit(0);
}
