/* An MPI program that hears of a death: its last rank kills itself, and every other one says how it was
 * told. It talks to no rank after that, so it needs no fault tolerance of its MPI.
 *
 * Lines on standard output: "READY rank", "TOLD rank: what", "FAIL rank: what". With "cards" as argument
 * the agents are brought together by muster_mpi_init, on two emulated nodes. */
#include <muster_mpi.h>

#include <signal.h>

#define DEADLINE_MS 60000
#define ENDED (MUSTER_STATE(MUSTER_RANK_FAILED) | MUSTER_STATE(MUSTER_RANK_LEFT))

static int rank = -1, size;

static int fail(const char *what)
{
    printf("FAIL %d: %s: %s\n", rank, what, muster_last_error_message());
    fflush(stdout);
    _exit(1);
}

/* Two ranks a node, each node with addresses of its own. */
static void emulate_nodes(void)
{
    char text[64];
    const char *net = getenv("TOLD_NET");
    snprintf(text, sizeof text, "n%d", rank / 2);
    setenv("MUSTER_NODE", text, 1);
    snprintf(text, sizeof text, "127.%s.%d@udp0", net ? net : "91.1", rank / 2 + 1);
    setenv("MUSTER_RAILS", text, 1);
}

static void check_groups(muster_ctx_t *muster, int victim)
{
    MPI_Group failed = MPI_GROUP_NULL, world;
    int first = 0, in_world = -1;
    if (muster_mpi_failed(muster, MPI_COMM_WORLD, &failed) != 1)
        fail("muster_mpi_failed");
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_translate_ranks(failed, 1, &first, world, &in_world);
    MPI_Group_free(&failed);
    if (in_world != victim)
        fail("another rank is in the group");
    /* The others may have left by now. */
    if (muster_mpi_group(muster, MPI_COMM_WORLD,
                         MUSTER_STATE(MUSTER_RANK_ALIVE) | MUSTER_STATE(MUSTER_RANK_LEFT), &failed) != size - 1)
        fail("muster_mpi_group");
    MPI_Group_free(&failed);
    if (muster_mpi_failed(NULL, MPI_COMM_WORLD, &failed) != MUSTER_ERR_ARGUMENT || failed != MPI_GROUP_NULL)
        fail("a NULL context was taken");
    MPI_Group_free(&world);
}

static void say_how(muster_ctx_t *muster, int victim)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[256];
    while (muster_next_event(muster, &event) > 0)
        if (event.kind == MUSTER_EVENT_RANK_FAILED && event.rank == (uint32_t)victim) {
            muster_event_describe(muster, &event, text, sizeof text);
            printf("TOLD %d: %s\n", rank, text);
            fflush(stdout);
            return;
        }
    fail("no event");
}

int main(int argc, char **argv)
{
    int cards = argc > 1 && strcmp(argv[1], "cards") == 0, status;
    muster_ctx_t *muster = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (cards)
        emulate_nodes();
    status = cards ? muster_mpi_init(MPI_COMM_WORLD, NULL, &muster) : muster_init(NULL, &muster);
    if (status < 0)
        fail(muster_strerror(status));
    if (muster_wait_ranks(muster, (uint32_t)size, MUSTER_STATE(MUSTER_RANK_ALIVE), DEADLINE_MS) != size)
        fail("not all ranks are there");
    printf("READY %d\n", rank);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    if (size > 1 && rank == size - 1)
        raise(SIGKILL);
    if (size > 1) {
        if (muster_wait_rank(muster, (uint32_t)size - 1, ENDED, DEADLINE_MS) != MUSTER_RANK_FAILED)
            fail("the death was not told");
        say_how(muster, size - 1);
        check_groups(muster, size - 1);
    }
    if (muster_finalize(muster) < 0)
        fail("muster_finalize");
    /* Not MPI_Finalize: it may wait for the dead. */
    _exit(0);
}
