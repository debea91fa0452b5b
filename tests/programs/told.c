/* An MPI program that is notified of a death: its last rank kills itself when the test requests it, and every
 * other one writes down the notification. It exchanges no messages after that, so it needs no fault tolerance
 * of its MPI.
 *
 * Lines on standard output: "READY rank", "FAIL rank: what". The last rank dies when there is a file "die" in
 * the working directory. Rank N writes its notification into the file "told-N", since some launchers lose
 * what is printed at the end. With "records" as argument muster_mpi_init connects the agents, on two emulated
 * nodes. With "joined" libmuster-pmpi.so has connected them, and no rank dies. With "spawn" no rank dies: the
 * ranks spawn two more of this program, one of which does, and print "SPAWNED rank" if they are all alive
 * when the other one was notified. With "finalized" MPI is finalized before the death. With "early" Muster is
 * attached before MPI is initialised, with "late" only after MPI is finalized. With "stay" the survivors wait
 * until they are ended; with "bare" they do so without Muster, without a notification. */
#include <muster_mpi.h>

#include <signal.h>
#include <sys/stat.h>

#define DEADLINE_MS 60000
#define ENDED (MUSTER_STATE(MUSTER_RANK_FAILED) | MUSTER_STATE(MUSTER_RANK_LEFT))

static int rank = -1, size;

static int fail(const char *what)
{
    printf("FAIL %d: %s: %s\n", rank, what, muster_last_error_message());
    fflush(stdout);
    _exit(1);
}

/* Two ranks per node, each node with addresses of its own. */
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
        fail("a NULL context was accepted");
    MPI_Group_free(&world);
}

/* Written atomically. */
static void write_down(const char *text)
{
    char name[32], draft[32];
    FILE *file;
    snprintf(name, sizeof name, "told-%d", rank);
    snprintf(draft, sizeof draft, "draft-%d", rank);
    file = fopen(draft, "w");
    if (!file || fprintf(file, "%s\n", text) < 0 || fclose(file) != 0 || rename(draft, name) < 0)
        fail("the notification cannot be written");
}

static void write_event(muster_ctx_t *muster, int victim)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[256];
    while (muster_next_event(muster, &event) > 0)
        if (event.kind == MUSTER_EVENT_RANK_FAILED && event.rank == (uint32_t)victim) {
            muster_event_describe(muster, &event, text, sizeof text);
            write_down(text);
            return;
        }
    fail("no event");
}

/* PMIx, which started after Muster, was notified of the death, too. */
static void await_notified(muster_ctx_t *muster)
{
    uint64_t notified = 0;
    int tries;
    for (tries = 0; notified == 0; tries++, usleep(1000))
        if (muster_counter(muster, "pmix_notified", &notified) < 0 || tries > DEADLINE_MS)
            fail("PMIx was not notified of the death");
}

/* The children are a job of their own: their deaths do not affect the parents. */
static void spawn(muster_ctx_t *muster, const char *program)
{
    MPI_Comm children;
    int notified = 0, other;
    if (MPI_Comm_spawn(program, MPI_ARGV_NULL, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children,
                       MPI_ERRCODES_IGNORE) != MPI_SUCCESS)
        fail("MPI_Comm_spawn");
    MPI_Comm_set_errhandler(children, MPI_ERRORS_RETURN);
    if (rank == 0 && MPI_Recv(&notified, 1, MPI_INT, 0, 0, children, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        fail("MPI_Recv");
    MPI_Barrier(MPI_COMM_WORLD);
    for (other = 0; other < size; other++)
        if (muster_rank_state(muster, (uint32_t)other) != MUSTER_RANK_ALIVE)
            fail("a parent is not alive");
    if (muster_rank_count(muster) != size)
        fail("the children are among the ranks");
    /* No rank leaves before all have checked. A rank that finds the others gone knows that they have: they
     * end without MPI_Finalize, which MPI calls a failure. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    (void)MPI_Barrier(MPI_COMM_WORLD);
    printf("SPAWNED %d\n", rank);
    fflush(stdout);
}

/* Notifies the parents, if there are any, that it was notified. */
static void tell_parents(void)
{
    MPI_Comm parents;
    int notified = 1;
    MPI_Comm_get_parent(&parents);
    if (parents == MPI_COMM_NULL || rank != 0)
        return;
    MPI_Comm_set_errhandler(parents, MPI_ERRORS_RETURN);
    if (MPI_Send(&notified, 1, MPI_INT, 0, 0, parents) != MPI_SUCCESS)
        fail("MPI_Send");
}

/* A rank that cannot be connected still takes part: the others get their own error, and no rank hangs. */
static void check_refused(void)
{
    muster_ctx_t *muster = NULL;
    muster_config_t wrong = MUSTER_CONFIG_INIT;
    wrong.rank = -2;
    int status = muster_mpi_init(MPI_COMM_WORLD, &wrong, rank == 1 ? NULL : &muster);
    if (status != (rank == 1 ? MUSTER_ERR_ARGUMENT : MUSTER_ERR_CONFIG) || muster)
        fail("a wrong muster_mpi_init");
}

/* Waits for the file, and dies. */
static void die(void)
{
    struct stat found;
    int tries;
    for (tries = 0; stat("die", &found) < 0; tries++, usleep(1000))
        if (tries > DEADLINE_MS)
            fail("the file \"die\" did not appear in time");
    raise(SIGKILL);
}

/* Shows what a launcher does with the others by itself when a rank dies. */
static void bare(void)
{
    printf("READY %d\n", rank);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1)
        die();
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int records = strcmp(how, "records") == 0, status;
    int spawns = strcmp(how, "spawn") == 0;
    int joined = strcmp(how, "joined") == 0;
    int early = strcmp(how, "early") == 0, late = strcmp(how, "late") == 0;
    int finalized = late || strcmp(how, "finalized") == 0;
    int stays = strcmp(how, "stay") == 0;
    const char *program = argv[0];
    muster_ctx_t *muster = NULL;
    /* Some launchers end the job because of the death, and on a busy machine before all ranks are notified of
     * it. */
    signal(SIGTERM, SIG_IGN);
    if (early && muster_init(NULL, &muster) < 0)
        fail("muster_init before MPI_Init");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(how, "bare") == 0)
        bare();
    if (records) {
        check_refused();
        emulate_nodes();
    }
    if (late)
        MPI_Finalize();
    if (!early) {
        status = records ? muster_mpi_init(MPI_COMM_WORLD, NULL, &muster) : muster_init(NULL, &muster);
        if (status < 0)
            fail(muster_strerror(status));
    }
    if (muster_wait_ranks(muster, (uint32_t)size, MUSTER_STATE(MUSTER_RANK_ALIVE), DEADLINE_MS) != size)
        fail("not all ranks are alive");
    if (!late)
        MPI_Barrier(MPI_COMM_WORLD);
    if (finalized && !late)
        MPI_Finalize();
    /* The death comes when all have printed this: then no rank is in a call of MPI that it would end. */
    printf("READY %d\n", rank);
    fflush(stdout);
    if (joined) {
        if (muster_node_count(muster) < 2 || muster_finalize(muster) < 0)
            fail("the nodes of the others are not known");
        MPI_Finalize();
        return 0;
    }
    if (spawns) {
        spawn(muster, program);
    } else if (size > 1) {
        if (rank == size - 1)
            die();
        if (muster_wait_rank(muster, (uint32_t)size - 1, ENDED, DEADLINE_MS) != MUSTER_RANK_FAILED)
            fail("the death was not reported");
        if (early)
            await_notified(muster);
        write_event(muster, size - 1);
        while (stays)
            pause();
        if (!finalized) {
            check_groups(muster, size - 1);
            tell_parents();
        }
    }
    if (muster_finalize(muster) < 0)
        fail("muster_finalize");
    /* Not MPI_Finalize, which may wait for the dead rank. */
    _exit(0);
}
