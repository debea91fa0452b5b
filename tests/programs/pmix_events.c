/* An MPI program that registers PMIx event handlers for the codes of muster.h, one at a time, and records the
 * events that it receives. Its last rank is the victim.
 *
 * pmix_events hung      the victim is stopped, continues, and is killed; all ranks are on one node. Rank
 *                       0 prints "ASKS" and kills it when there is a file "die" in the working directory
 * pmix_events gone      PMIx is finalized before Muster, and then the victim dies
 * pmix_events node      the node of the upper half of the ranks becomes silent (the test stops it). The last
 *                       rank never attaches, rank 1 attaches after the failure, and MPI knows both ranks as
 *                       failed. With "asks" they request the feed to MPI in a second call
 * pmix_events suspected the agent of the node of the upper half of the ranks is stopped, and continues when
 *                       rank 0 has printed "SUSPECTED" (the test does both)
 * pmix_events rails     a rail of the node of the upper half of the ranks becomes silent and works again (the
 *                       test does both, the latter when rank 0 prints "DEGRADED")
 * pmix_events launcher_report MS
 *                       the victim never attaches and is killed: only the launcher can report it, within this
 *                       time; "asks" works as for "hung"
 *
 * Rank N writes its events into the file "heard-N", a line "code about" each, since some launchers lose what
 * is printed at the end. Lines on standard output: "READY rank", "TOLD rank: what", "UNTOLD rank", "DONE
 * rank", "FAIL rank: what". */
#define _GNU_SOURCE
#include <muster_mpi.h>

#include <dlfcn.h>
#include <errno.h>
#include <mpi-ext.h>
#include <pmix.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define DEADLINE_MS 60000

static int rank = -1, size, victim;

static int fail(const char *what)
{
    printf("FAIL %d: %s: %s\n", rank, what, muster_last_error_message());
    fflush(stdout);
    _exit(1);
}

/* ---------------------------------------------------------------- the events of PMIx's thread */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct {
        int code;
        unsigned about;
    } heard[64];
    int count;
    int registered; /* completed registrations, negative after a refusal */
} events = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {{0, 0}}, 0, 0};

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[],
                     size_t count, pmix_info_t *results, size_t results_count,
                     pmix_event_notification_cbfunc_fn_t go_on, void *data)
{
    (void)id, (void)source, (void)results, (void)results_count;
    pthread_mutex_lock(&events.lock);
    for (size_t i = 0; i < count && events.count < 64; i++)
        if (!strncmp(info[i].key, PMIX_EVENT_AFFECTED_PROC, PMIX_MAX_KEYLEN) && info[i].value.type == PMIX_PROC) {
            events.heard[events.count].code = status;
            events.heard[events.count++].about = info[i].value.data.proc->rank;
        }
    pthread_cond_broadcast(&events.more);
    pthread_mutex_unlock(&events.lock);
    if (go_on)
        go_on(PMIX_EVENT_NO_ACTION_TAKEN, NULL, 0, NULL, NULL, data);
}

static void on_registered(pmix_status_t status, size_t reference, void *data)
{
    (void)reference, (void)data;
    pthread_mutex_lock(&events.lock);
    events.registered = status == PMIX_SUCCESS && events.registered >= 0 ? events.registered + 1 : -1;
    pthread_cond_broadcast(&events.more);
    pthread_mutex_unlock(&events.lock);
}

static struct timespec in_time(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_MS / 1000;
    return until;
}

static void *function_of_pmix(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);
    if (!address)
        fail(name);
    return address;
}

static void listen_to(int code)
{
    __typeof__(PMIx_Register_event_handler) *register_handler = function_of_pmix("PMIx_Register_event_handler");
    struct timespec until = in_time();
    pmix_status_t codes[1] = {code};
    int before, timed = 0;
    pthread_mutex_lock(&events.lock);
    before = events.registered;
    pthread_mutex_unlock(&events.lock);
    register_handler(codes, 1, NULL, 0, on_event, on_registered, NULL);
    pthread_mutex_lock(&events.lock);
    while (events.registered == before && timed != ETIMEDOUT)
        timed = pthread_cond_timedwait(&events.more, &events.lock, &until);
    if (events.registered <= before)
        fail("a handler was refused");
    pthread_mutex_unlock(&events.lock);
}

static void listen_to_all(void)
{
    static const int codes[] = {MUSTER_PMIX_SUSPECT,     MUSTER_PMIX_DEGRADED,    MUSTER_PMIX_HUNG,
                                MUSTER_PMIX_NODE_FAILED, MUSTER_PMIX_RANK_FAILED, MUSTER_PMIX_BACK};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        listen_to(codes[i]);
}

/* Waits until this event was received. */
static void await_event(int code, unsigned about)
{
    struct timespec until = in_time();
    int found = 0, timed = 0;
    pthread_mutex_lock(&events.lock);
    while (!found && timed != ETIMEDOUT) {
        for (int i = 0; i < events.count; i++)
            found |= events.heard[i].code == code && events.heard[i].about == about;
        if (!found)
            timed = pthread_cond_timedwait(&events.more, &events.lock, &until);
    }
    pthread_mutex_unlock(&events.lock);
    if (!found)
        fail("an event was not received");
}

static void write_all(void)
{
    char name[32], draft[32];
    FILE *file;
    snprintf(name, sizeof name, "heard-%d", rank);
    snprintf(draft, sizeof draft, "draft-%d", rank);
    file = fopen(draft, "w");
    if (!file)
        fail("the events cannot be written");
    pthread_mutex_lock(&events.lock);
    for (int i = 0; i < events.count; i++)
        fprintf(file, "%d %u\n", events.heard[i].code, events.heard[i].about);
    pthread_mutex_unlock(&events.lock);
    if (fclose(file) != 0 || rename(draft, name) < 0)
        fail("the events cannot be written");
}

/* --------------------------------------------------------------------------------- the tests */

static muster_ctx_t *attach(int ranks)
{
    muster_ctx_t *muster = NULL;
    int status = muster_init(NULL, &muster);
    if (status < 0)
        fail(muster_strerror(status));
    if (ranks && muster_wait_ranks(muster, (uint32_t)ranks, MUSTER_STATE(MUSTER_RANK_ALIVE), DEADLINE_MS) < ranks)
        fail("not all ranks are alive");
    return muster;
}

static void leave(muster_ctx_t *muster)
{
    if (muster_finalize(muster) < 0)
        fail("muster_finalize");
    printf("DONE %d\n", rank);
    fflush(stdout);
    /* Not MPI_Finalize, which may wait for the dead rank. */
    _exit(0);
}

static void ready(void)
{
    printf("READY %d\n", rank);
    fflush(stdout);
}

/* Waits until the test requests the victim's death. */
static void await_die_file(void)
{
    struct stat found;
    printf("ASKS\n");
    fflush(stdout);
    for (int tries = 0; stat("die", &found) < 0; usleep(1000))
        if (++tries > DEADLINE_MS)
            fail("the file \"die\" did not appear in time");
}

static void hung(void)
{
    MPI_Comm survivors;
    int pid = getpid(), pids[64];
    /* Some launchers end the job because of the victim's death, and on a busy machine before all are
     * notified. */
    signal(SIGTERM, SIG_IGN);
    muster_ctx_t *muster = attach(size);
    listen_to_all();
    MPI_Allgather(&pid, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Comm_split(MPI_COMM_WORLD, rank == victim, rank, &survivors);
    ready();
    MPI_Barrier(MPI_COMM_WORLD);
    while (rank == victim)
        pause();
    if (rank == 0)
        kill(pids[victim], SIGSTOP);
    await_event(MUSTER_PMIX_HUNG, (unsigned)victim);
    MPI_Barrier(survivors);
    if (rank == 0)
        kill(pids[victim], SIGCONT);
    await_event(MUSTER_PMIX_BACK, (unsigned)victim);
    MPI_Barrier(survivors);
    if (rank == 0) {
        await_die_file();
        kill(pids[victim], SIGKILL);
    }
    await_event(MUSTER_PMIX_RANK_FAILED, (unsigned)victim);
    write_all();
    /* Launchers end the job when the first rank has ended. */
    MPI_Barrier(survivors);
    leave(muster);
}

static void mark_name(char *name, int of) { sprintf(name, "gone-%d", of); }

static void gone(void)
{
    __typeof__(PMIx_Initialized) *initialized = function_of_pmix("PMIx_Initialized");
    __typeof__(PMIx_Finalize) *finalize = function_of_pmix("PMIx_Finalize");
    char name[32];
    int pid = getpid(), pids[64];
    uint64_t refused = 0;
    struct stat found;
    muster_ctx_t *muster = attach(size);
    listen_to(MUSTER_PMIX_HUNG);
    MPI_Allgather(&pid, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
    ready();
    MPI_Barrier(MPI_COMM_WORLD);
    while (rank == victim)
        pause();
    if (rank == 0)
        kill(pids[victim], SIGSTOP);
    await_event(MUSTER_PMIX_HUNG, (unsigned)victim);
    while (initialized())
        finalize(NULL, 0);
    mark_name(name, rank);
    fclose(fopen(name, "w"));
    for (int other = 0; rank == 0 && other < victim; other++) {
        mark_name(name, other);
        while (stat(name, &found) < 0)
            usleep(1000);
    }
    if (rank == 0)
        kill(pids[victim], SIGKILL);
    if (muster_wait_rank(muster, (uint32_t)victim, MUSTER_STATE(MUSTER_RANK_FAILED), DEADLINE_MS) < 0)
        fail("the death was not reported");
    /* The library thread tries to notify PMIx at its next turn. */
    for (int tries = 0; refused == 0 && tries < DEADLINE_MS; tries++, usleep(1000))
        if (muster_counter(muster, "pmix_refused", &refused) < 0)
            fail("muster_counter");
    if (!refused)
        fail("no refusal was counted");
    leave(muster);
}

static void rails(void)
{
    muster_ctx_t *muster = attach(size);
    unsigned upper = (unsigned)size / 2, other;
    listen_to_all();
    MPI_Barrier(MPI_COMM_WORLD);
    ready();
    if (rank == 0) {
        for (other = upper; other < (unsigned)size; other++)
            await_event(MUSTER_PMIX_DEGRADED, other);
        printf("DEGRADED\n");
        fflush(stdout);
        for (other = upper; other < (unsigned)size; other++)
            await_event(MUSTER_PMIX_BACK, other);
        write_all();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    leave(muster);
}

/* The agent of the upper ranks is stopped, which alone must not count as a failure, and continues. */
static void suspected(void)
{
    muster_ctx_t *muster = attach(size);
    unsigned upper = (unsigned)size / 2, other;
    listen_to_all();
    MPI_Barrier(MPI_COMM_WORLD);
    ready();
    if (rank == 0) {
        for (other = upper; other < (unsigned)size; other++)
            await_event(MUSTER_PMIX_SUSPECT, other);
        printf("SUSPECTED\n");
        fflush(stdout);
        for (other = upper; other < (unsigned)size; other++)
            await_event(MUSTER_PMIX_BACK, other);
        write_all();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    leave(muster);
}

static void launcher_report(uint32_t limit_ms, int asks)
{
    muster_ctx_t *muster = NULL;
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[256];
    uint64_t heard = 0;
    if (rank != victim)
        muster = attach(size - 1);
    ready();
    if (rank == 0 && asks)
        await_die_file();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == victim)
        raise(SIGKILL);
    if (muster_wait_rank(muster, (uint32_t)victim, MUSTER_STATE(MUSTER_RANK_FAILED), limit_ms) < 0) {
        printf("UNTOLD %d\n", rank);
        leave(muster);
    }
    while (muster_next_event(muster, &event) > 0)
        if (event.kind == MUSTER_EVENT_RANK_FAILED && event.rank == (uint32_t)victim) {
            muster_event_describe(muster, &event, text, sizeof text);
            printf("TOLD %d: %s\n", rank, text);
        }
    for (int tries = 0; heard == 0 && tries < DEADLINE_MS; tries++, usleep(1000))
        muster_counter(muster, "pmix_heard", &heard);
    if (!heard)
        fail("the launcher notified others, not this rank");
    leave(muster);
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
/* Waits until MPI itself holds this number of ranks failed. */
static void await_failed(int ranks)
{
    for (int tries = 0, found = 0; found < ranks; tries++, usleep(1000)) {
        MPI_Group failed;
        int flag;
        MPI_Iprobe(MPI_ANY_SOURCE, 99, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
        MPIX_Comm_get_failed(MPI_COMM_WORLD, &failed);
        MPI_Group_size(failed, &found);
        MPI_Group_free(&failed);
        if (tries > DEADLINE_MS)
            fail("MPI was not notified");
    }
}

/* As if libmuster-pmpi.so had connected before: the application requests the feed in a second call. */
static void request_feed(void)
{
    muster_ctx_t *muster = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.flags = MUSTER_FEED_ULFM;
    if (muster_init(&config, &muster) < 0)
        fail(muster_last_error_message());
}

static void node(int asks)
{
    muster_ctx_t *muster = NULL;
    int upper = size / 2, token = 0;
    if (rank != 1 && rank != victim)
        muster = attach(size - 2);
    if (muster && asks)
        request_feed();
    if (muster)
        listen_to_all();
    MPI_Barrier(MPI_COMM_WORLD);
    ready();
    while (rank >= upper)
        pause();
    if (rank == 0) {
        for (int lost = upper; lost < size; lost++)
            await_event(MUSTER_PMIX_NODE_FAILED, (unsigned)lost);
        MPI_Send(&token, 1, MPI_INT, 1, 7, MPI_COMM_WORLD);
    } else {
        MPI_Recv(&token, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        muster = attach(0);
        if (asks)
            request_feed();
    }
    await_failed(size - upper);
    write_all();
    if (asks && muster_finalize(muster) < 0)
        fail("muster_finalize");
    leave(muster);
}
#else
static void node(int asks) { (void)asks, fail("this MPI has no ULFM"); }
#endif

int main(int argc, char **argv)
{
    const char *test = argc > 1 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    victim = size - 1;
    if (!strcmp(test, "hung"))
        hung();
    else if (!strcmp(test, "gone"))
        gone();
    else if (!strcmp(test, "node"))
        node(argc > 2 && !strcmp(argv[2], "asks"));
    else if (!strcmp(test, "suspected"))
        suspected();
    else if (!strcmp(test, "rails"))
        rails();
    else if (!strcmp(test, "launcher_report"))
        launcher_report((uint32_t)strtoul(argc > 2 ? argv[2] : "0", NULL, 10), argc > 3);
    fail("unknown test");
}
