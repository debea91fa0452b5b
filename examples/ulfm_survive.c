/* ulfm_survive.c - an MPI computation that loses ranks and nodes and still ends with the correct result.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Every rank has the whole state (a ring of cells) and computes a slice of the next state; an MPI_Allgatherv
 * combines the slices. The rule for a cell does not depend on the rank that computes it, so the result is the
 * same for any number of ranks, bit for bit. The rule is chaotic, so a single wrong bit at any step changes the
 * result, which is compared with a serial run at the end.
 *
 * Three threads a rank:
 *   main      computes; the only one that calls MPI. After a failed call: revoke, shrink, continue.
 *   listener  waits on Muster's descriptor and logs each event with its time.
 *   watchdog  gives each MPI call a deadline. If MPI cannot continue, it takes the last complete
 *             state from the main thread and finishes the computation alone.
 *
 * Only confirmed failures are reported to MPI: those of a killed rank and of a silent node, as soon as Muster
 * reports them. A rank that hangs (stopped, stuck) may continue, so the other ranks wait for it. With
 * SURVIVE_GIVE_UP_S they wait at most that long; then the first live rank of its node kills it.
 *
 * Build:  mpicc -std=c11 -D_GNU_SOURCE ulfm_survive.c $(pkg-config --cflags --libs muster) -lpthread -lm
 * Run:    mpirun --with-ft ulfm -n 8 ./ulfm_survive --feed [--no-muster] [--cells N]
 *         --iterations N ends it after N iterations, --hang R makes rank R stop itself (SIGSTOP) on the way
 * Stop:   touch $SURVIVE_LOG_DIR/stop
 *
 * Environment: SURVIVE_LOG_DIR (default "."), SURVIVE_DEADLINE_S for each MPI call (default 15),
 * SURVIVE_READY_S until the whole job is alive (default 30), SURVIVE_GIVE_UP_S (see above).
 *
 * Facts go to $SURVIVE_LOG_DIR/rank-R.log, one line each, times in ns of CLOCK_MONOTONIC:
 *   READY rank pid node ns         Muster reports every rank of the job alive
 *   MISSING ns rank,rank..         ranks that were not alive within SURVIVE_READY_S; the job is aborted
 *   TOLD ns event subject cause text     an event from Muster; subject is a rank or a node's name
 *   GAVEUP ns rank                 the rank hung for too long and was killed
 *   SHRUNK ns size                 MPI continues with `size` ranks
 *   NOSHRINK ns why                MPI cannot go on; this rank finishes alone
 *   RESUMED ns iteration           computing again
 *   DONE ns ok|bad iteration hash  the end; ok: equal to a serial run, bit for bit
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <mpi-ext.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <muster.h>

/* ------------------------------------------------------------------------------------ the log */

static struct {
    const char *directory;
    int fd;
    int rank;
} logs = {".", -1, -1};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Writes one fact: a line to the log by one write (lines of two threads do not mix), and to stdout. */
__attribute__((format(printf, 1, 2))) static void fact(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    if ((size_t)length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (logs.fd >= 0 && write(logs.fd, line, (size_t)length) != length)
        fprintf(stderr, "rank %d: cannot write the log: %s\n", logs.rank, strerror(errno));
    line[length] = '\0';
    printf("rank %d: %s", logs.rank, line);
    fflush(stdout);
}

static void open_log(int rank)
{
    char path[4096];
    logs.rank = rank;
    snprintf(path, sizeof path, "%s/rank-%d.log", logs.directory, rank);
    logs.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (logs.fd < 0) {
        fprintf(stderr, "cannot open %s: %s\n", path, strerror(errno));
        exit(1);
    }
}

static bool stop_requested(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/stop", logs.directory);
    return access(path, F_OK) == 0;
}

static int environment_number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *end;
    long number = strtol(text, &end, 10);
    if (*end || number < 1 || number > 86400) {
        fprintf(stderr, "%s is \"%s\", but must be a number of seconds, 1 to 86400\n", name, text);
        exit(2);
    }
    return (int)number;
}

/* ---------------------------------------------------------------------------- the computation */

/* The last complete state. Main replaces it, the watchdog may take it from main; both use the lock. */
static struct {
    pthread_mutex_t lock;
    double *cells; /* [count] */
    int count;
    long iteration;
    bool abandoned; /* taken permanently, by the watchdog or at the end */
} state = {PTHREAD_MUTEX_INITIALIZER, NULL, 1024, 0, false};

/* A coupled map lattice: each cell mixes with its neighbours, then goes through a chaotic map. */
static double cell_next(const double *cells, int count, int i)
{
    double left = cells[i == 0 ? count - 1 : i - 1];
    double right = cells[i == count - 1 ? 0 : i + 1];
    double mixed = 0.7 * cells[i] + 0.15 * (left + right);
    return 1.0 - 1.9 * mixed * mixed;
}

static void cells_start(double *cells, int count)
{
    for (int i = 0; i < count; i++)
        cells[i] = (double)((i * 7919) % 1000) / 1000.0 - 0.5;
}

/* One iteration by one process: the serial program, whose result the parallel one must equal. */
static void cells_advance(double *cells, double *scratch, int count)
{
    for (int i = 0; i < count; i++)
        scratch[i] = cell_next(cells, count, i);
    memcpy(cells, scratch, sizeof *cells * (size_t)count);
}

static double *cells_new(int count)
{
    double *cells = calloc((size_t)count, sizeof *cells);
    if (!cells) {
        fprintf(stderr, "no memory for %d cells\n", count);
        exit(1);
    }
    return cells;
}

/* Compares with a serial run from the start, and writes the last fact. */
static bool verify(void)
{
    double *serial = cells_new(state.count), *scratch = cells_new(state.count);
    cells_start(serial, state.count);
    for (long i = 0; i < state.iteration; i++)
        cells_advance(serial, scratch, state.count);
    size_t size = sizeof *serial * (size_t)state.count;
    bool same = memcmp(serial, state.cells, size) == 0;
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, to compare ranks by eye */
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((unsigned char *)state.cells)[i]) * 0x100000001b3u;
    fact("DONE %" PRId64 " %s %ld %016" PRIx64, now_ns(), same ? "ok" : "bad", state.iteration,
         hash);
    free(serial);
    free(scratch);
    return same;
}

/* ------------------------------------------------------------------------------- the watchdog */

static struct {
    _Atomic(const char *) step; /* the MPI call that main is in, or NULL */
    atomic_llong since_ns;
    atomic_bool outcast;  /* the other members declared this node failed, and so did MPI */
    atomic_int exit_code; /* of the verified result; -1 if there is none yet */
    int64_t deadline_ns;
} watch = {.exit_code = -1};

/* Ranks that hang. They are killed if that takes too long. */
static struct {
    int *pids;             /* [ranks]; only those of this node are used */
    atomic_llong *since_ns; /* [ranks], 0 for a rank that does not hang */
    int ranks;
    int64_t timeout_ns; /* 0: no limit */
} hung;

static void step_begin(const char *step)
{
    atomic_store(&watch.since_ns, now_ns());
    atomic_store(&watch.step, step);
}

static void step_end(void)
{
    atomic_store(&watch.step, NULL);
}

static void leave(void);

/* Only one thread may use the state from now on; another thread that calls this sleeps forever. */
static void take_over(void)
{
    pthread_mutex_lock(&state.lock);
    bool late = state.abandoned;
    state.abandoned = true;
    pthread_mutex_unlock(&state.lock);
    while (late)
        pause();
}

/* MPI cannot continue: take the state, continue as a serial program until the driver requests a stop. */
static void finish_alone(const char *why)
{
    take_over();
    fact("NOSHRINK %" PRId64 " %s", now_ns(), why);
    fact("RESUMED %" PRId64 " %ld", now_ns(), state.iteration);
    double *scratch = cells_new(state.count);
    while (!stop_requested()) {
        cells_advance(state.cells, scratch, state.count);
        state.iteration++;
        nanosleep(&(struct timespec){0, 1000000}, NULL); /* leave the cores to other ranks */
    }
    bool same = verify();
    leave();
    _exit(same ? 0 : 1);
}

static void kill_hung_ranks(void);

static void *watchdog(void *unused)
{
    (void)unused;
    for (;;) {
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        kill_hung_ranks();
        if (atomic_load(&watch.outcast) && atomic_load(&watch.exit_code) < 0)
            finish_alone("the other members declared this node failed, and MPI cannot undo that");
        const char *step = atomic_load(&watch.step);
        if (step && now_ns() - atomic_load(&watch.since_ns) > watch.deadline_ns &&
            step == atomic_load(&watch.step)) {
            if (atomic_load(&watch.exit_code) >= 0) {
                printf("rank %d: %s does not return; this process ends without it\n", logs.rank, step);
                fflush(stdout);
                _exit(atomic_load(&watch.exit_code));
            }
            char why[256];
            snprintf(why, sizeof why, "%s did not return within %d s", step,
                     (int)(watch.deadline_ns / 1000000000));
            finish_alone(why);
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------- the listener */

static struct {
    muster_ctx_t *context; /* NULL with --no-muster */
    uint32_t flags;
    pthread_t thread;
    atomic_bool ending;
} listener;

static void log_event(const muster_event_t *event, int64_t seen_ns)
{
    char subject[256] = "-", text[512] = "";
    if (event->rank != MUSTER_NONE)
        snprintf(subject, sizeof subject, "%" PRIu32, event->rank);
    else if (event->node != MUSTER_NONE)
        muster_node_name(listener.context, event->node, subject, sizeof subject);
    muster_event_describe(listener.context, event, text, sizeof text);
    /* The log has columns that are separated by blanks. */
    char cause[64];
    snprintf(cause, sizeof cause, "%s", muster_cause_name(event->cause));
    for (char *blank = cause; (blank = strchr(blank, ' ')) != NULL;)
        *blank = '-';
    fact("TOLD %" PRId64 " %s %s %s %s", seen_ns, muster_event_name(event->kind), subject, cause,
         text);
    if (event->kind == MUSTER_EVENT_OUTCAST)
        atomic_store(&watch.outcast, true);
    if (event->rank < (uint32_t)hung.ranks)
        atomic_store(&hung.since_ns[event->rank],
                     event->kind == MUSTER_EVENT_RANK_HUNG ? seen_ns : 0);
}

/* Whether this is the first live rank of the node of `rank`: one rank must act for the node. */
static bool is_first_alive_of_node(uint32_t rank)
{
    uint32_t ranks[256];
    int node = muster_rank_node(listener.context, rank);
    if (node < 0 || node != muster_my_node(listener.context))
        return false;
    int count = muster_node_ranks(listener.context, (uint32_t)node, ranks, 256);
    for (int i = 0; i < count && i < 256; i++)
        if (muster_rank_state(listener.context, ranks[i]) == MUSTER_RANK_ALIVE)
            return ranks[i] == (uint32_t)logs.rank;
    return false;
}

static void kill_hung_ranks(void)
{
    for (int rank = 0; hung.timeout_ns > 0 && rank < hung.ranks; rank++) {
        int64_t since_ns = atomic_load(&hung.since_ns[rank]);
        if (since_ns == 0 || now_ns() - since_ns < hung.timeout_ns ||
            muster_rank_state(listener.context, (uint32_t)rank) != MUSTER_RANK_HUNG ||
            !is_first_alive_of_node((uint32_t)rank))
            continue;
        atomic_store(&hung.since_ns[rank], 0);
        fact("GAVEUP %" PRId64 " %d", now_ns(), rank);
        kill(hung.pids[rank], SIGKILL);
    }
}

/* Call it before the listener starts, which writes to what is allocated here. */
static void prepare_to_kill_hung_ranks(int ranks)
{
    int pid = (int)getpid();
    hung.pids = calloc((size_t)ranks, sizeof *hung.pids);
    hung.since_ns = calloc((size_t)ranks, sizeof *hung.since_ns);
    if (!hung.pids || !hung.since_ns)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Allgather(&pid, 1, MPI_INT, hung.pids, 1, MPI_INT, MPI_COMM_WORLD);
    if (getenv("SURVIVE_GIVE_UP_S"))
        hung.timeout_ns = environment_number("SURVIVE_GIVE_UP_S", 1) * INT64_C(1000000000);
    hung.ranks = ranks;
}

static void *listen_to_muster(void *unused)
{
    (void)unused;
    struct pollfd news = {muster_get_fd(listener.context), POLLIN, 0};
    while (!atomic_load(&listener.ending)) {
        if (poll(&news, 1, 100) <= 0)
            continue;
        int64_t seen_ns = now_ns();
        muster_event_t event = MUSTER_EVENT_INIT;
        int status;
        while ((status = muster_next_event(listener.context, &event)) > 0) {
            log_event(&event, seen_ns);
            seen_ns = now_ns();
        }
        if (status < 0) {
            printf("rank %d: %s: %s\n", logs.rank, muster_strerror(status),
                   muster_last_error_message());
            nanosleep(&(struct timespec){0, 10000000}, NULL);
        }
    }
    return NULL;
}

static void connect_to_muster(int rank, int ranks)
{
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.rank = rank;
    config.ranks = ranks;
    config.flags = listener.flags;
    int status = muster_init(&config, &listener.context);
    if (status < 0) {
        fprintf(stderr, "rank %d: muster_init: %s: %s\n", rank, muster_strerror(status),
                muster_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (pthread_create(&listener.thread, NULL, listen_to_muster, NULL) != 0) {
        fprintf(stderr, "rank %d: cannot start the listener\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Waits until Muster reports every rank alive. Before that, a silence has no meaning. */
static void wait_until_all_are_alive(int ranks)
{
    int64_t give_up_ns = now_ns() + environment_number("SURVIVE_READY_S", 30) * INT64_C(1000000000);
    for (int rank = 0; rank < ranks; rank++) {
        while (muster_rank_state(listener.context, (uint32_t)rank) != MUSTER_RANK_ALIVE) {
            if (now_ns() > give_up_ns) {
                char missing[512] = "";
                for (int r = 0; r < ranks && strlen(missing) < 480; r++) {
                    int seen = muster_rank_state(listener.context, (uint32_t)r);
                    if (seen != MUSTER_RANK_ALIVE)
                        snprintf(missing + strlen(missing), 32, "%s%d(%s)", *missing ? "," : "", r,
                                 seen < 0 ? muster_error_name(seen) : muster_rank_state_name(seen));
                }
                fact("MISSING %" PRId64 " %s", now_ns(), missing);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
    }
}

static void report_ready(void)
{
    char node[256] = "-";
    if (listener.context)
        muster_node_name(listener.context, (uint32_t)muster_my_node(listener.context), node,
                         sizeof node);
    fact("READY %d %d %s %" PRId64, logs.rank, (int)getpid(), node, now_ns());
}

/* Leaves in order: other ranks get "left", not "failed". */
static void leave(void)
{
    if (!listener.context)
        return;
    atomic_store(&listener.ending, true);
    pthread_join(listener.thread, NULL);
    muster_finalize(listener.context);
}

/* ------------------------------------------------------------------------------------- the MPI */

static struct {
    MPI_Comm communicator;
    int rank, size;
    int *counts, *places; /* of the slices, seals included */
    double *gathered, *slice, *scratch;
    bool has_lost_ranks;
} team;

/* The seal: what a slice has in addition to its cells. Open MPI 5 sometimes reports that a collective has succeeded
 * although the slice of a failed rank never arrived; the seal proves that the slice arrived. */
enum { SEAL_STOP, SEAL_ITERATION, SEAL_SUM, SEAL_SIZE };

static double seal_sum(const double *cells, int count)
{
    uint32_t sum = 0x811c9dc5u;
    for (size_t i = 0; i < sizeof *cells * (size_t)count; i++)
        sum = (sum ^ ((const unsigned char *)cells)[i]) * 0x01000193u;
    return sum;
}

static bool is_sealed(const double *slice, int count)
{
    return slice[count + SEAL_ITERATION] == (double)state.iteration &&
           slice[count + SEAL_SUM] == seal_sum(slice, count);
}

/* A late message may still write to the buffers of a failed collective: they are not used again, and the next
 * collective gets new ones. */
static void team_renew_buffers(int ranks)
{
    team.gathered = cells_new(state.count + ranks * SEAL_SIZE);
    team.slice = cells_new(state.count + SEAL_SIZE);
}

static int slice_start(int rank)
{
    return (int)((long)state.count * rank / team.size);
}

static void team_set(MPI_Comm communicator)
{
    team.communicator = communicator;
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
    MPI_Comm_rank(communicator, &team.rank);
    MPI_Comm_size(communicator, &team.size);
    for (int rank = 0; rank < team.size; rank++) {
        team.counts[rank] = slice_start(rank + 1) - slice_start(rank) + SEAL_SIZE;
        team.places[rank] = slice_start(rank) + rank * SEAL_SIZE;
    }
}

/* Replaces the state by the complete next one, unless the watchdog has taken it. */
static void commit(const double *next)
{
    pthread_mutex_lock(&state.lock);
    bool abandoned = state.abandoned;
    if (!abandoned) {
        memcpy(state.cells, next, sizeof *next * (size_t)state.count);
        state.iteration++;
    }
    pthread_mutex_unlock(&state.lock);
    while (abandoned)
        pause(); /* MPI returned after all; the watchdog ends this process */
}

/* What this rank does at a given iteration; -1 for nothing. */
static struct {
    long last, hang;
} plan = {-1, -1};

static bool stops_here(void)
{
    return stop_requested() || (plan.last >= 0 && state.iteration + 1 >= plan.last);
}

/* One iteration by the team. The state does not change unless all slices arrived. */
static int iterate(bool *stop)
{
    int first = slice_start(team.rank), count = slice_start(team.rank + 1) - first;
    if (state.iteration == plan.hang)
        raise(SIGSTOP); /* until SIGCONT, if it comes */
    for (int i = 0; i < count; i++)
        team.slice[i] = cell_next(state.cells, state.count, first + i);
    team.slice[count + SEAL_STOP] = stops_here() ? 1.0 : 0.0;
    team.slice[count + SEAL_ITERATION] = (double)state.iteration;
    team.slice[count + SEAL_SUM] = seal_sum(team.slice, count);
    for (int rank = 0; rank < team.size; rank++)
        team.gathered[team.places[rank] + team.counts[rank] - SEAL_SIZE + SEAL_ITERATION] = -1.0;

    step_begin("MPI_Allgatherv");
    int status = MPI_Allgatherv(team.slice, count + SEAL_SIZE, MPI_DOUBLE, team.gathered,
                                team.counts, team.places, MPI_DOUBLE, team.communicator);
    step_end();
    if (status != MPI_SUCCESS)
        return status;

    bool asked_to_stop = false;
    for (int rank = 0; rank < team.size; rank++) {
        int cells = team.counts[rank] - SEAL_SIZE;
        const double *from = team.gathered + team.places[rank];
        if (!is_sealed(from, cells)) {
            printf("rank %d: MPI_Allgatherv succeeded, but slice %d did not arrive\n", logs.rank, rank);
            return MPIX_ERR_PROC_FAILED;
        }
        memcpy(team.scratch + slice_start(rank), from, sizeof *from * (size_t)cells);
        asked_to_stop = asked_to_stop || from[cells + SEAL_STOP] != 0.0;
    }
    *stop = asked_to_stop;
    commit(team.scratch);
    return MPI_SUCCESS;
}

/* A rank that got all slices before the failure is one iteration ahead; the other ranks compute that iteration
 * alone. */
static int catch_up(void)
{
    long furthest = 0, own = state.iteration;
    step_begin("MPI_Allreduce after the shrink");
    int status = MPI_Allreduce(&own, &furthest, 1, MPI_LONG, MPI_MAX, team.communicator);
    step_end();
    if (status != MPI_SUCCESS)
        return status;
    while (state.iteration < furthest) {
        for (int i = 0; i < state.count; i++)
            team.scratch[i] = cell_next(state.cells, state.count, i);
        commit(team.scratch);
    }
    return MPI_SUCCESS;
}

static const char *mpi_text(int status)
{
    static char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(status, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", status);
    return text;
}

/* Continues with the ranks that are left; each round of the loop loses at least one more rank. */
static void recover(int status)
{
    team.has_lost_ranks = true;
    for (int round = 0;; round++) {
        int class = MPI_ERR_OTHER;
        MPI_Error_class(status, &class);
        printf("rank %d: MPI returned: %s\n", logs.rank, mpi_text(status));
        if ((class != MPIX_ERR_PROC_FAILED && class != MPIX_ERR_REVOKED &&
             class != MPIX_ERR_PROC_FAILED_PENDING) ||
            round > 64) {
            /* ULFM cannot repair this failure: finish alone. */
            char why[600];
            snprintf(why, sizeof why, "MPI cannot shrink: %s", mpi_text(status));
            finish_alone(why);
        }
        MPI_Comm shrunk = MPI_COMM_NULL;
        step_begin("MPIX_Comm_revoke");
        MPIX_Comm_revoke(team.communicator);
        step_begin("MPIX_Comm_shrink");
        status = MPIX_Comm_shrink(team.communicator, &shrunk);
        step_end();
        if (status != MPI_SUCCESS)
            continue;
        team_renew_buffers(team.size);
        team_set(shrunk); /* the old communicator is not freed: that would need the failed ranks */
        fact("SHRUNK %" PRId64 " %d", now_ns(), team.size);
        status = catch_up();
        if (status == MPI_SUCCESS)
            break;
    }
    fact("RESUMED %" PRId64 " %ld", now_ns(), state.iteration);
}

static void compute(void)
{
    bool stop = false;
    while (!stop) {
        int status = iterate(&stop);
        if (status != MPI_SUCCESS)
            recover(status);
    }
}

/* ------------------------------------------------------------------------------------ the start */

static bool read_arguments(int count, char **arguments, int *hanging)
{
    bool with_muster = true;
    for (int i = 1; i < count; i++) {
        int number = i + 1 < count ? atoi(arguments[i + 1]) : 0;
        if (strcmp(arguments[i], "--no-muster") == 0) {
            with_muster = false;
        } else if (strcmp(arguments[i], "--feed") == 0) {
            /* Report confirmed failures to ULFM; MUSTER_ULFM=1 in the environment does the same. */
            listener.flags = MUSTER_FEED_ULFM;
        } else if (strcmp(arguments[i], "--cells") == 0 && number > 0) {
            state.count = number;
            i++;
        } else if (strcmp(arguments[i], "--iterations") == 0 && number > 0) {
            plan.last = number;
            i++;
        } else if (strcmp(arguments[i], "--hang") == 0 && number > 0) {
            *hanging = number;
            i++;
        } else {
            fprintf(stderr, "usage: ulfm_survive [--feed] [--no-muster] [--cells N] [--iterations N] "
                            "[--hang R, from 1]\n");
            exit(2);
        }
    }
    if (getenv("SURVIVE_LOG_DIR"))
        logs.directory = getenv("SURVIVE_LOG_DIR");
    return with_muster;
}

int main(int argc, char **argv)
{
    int hanging = -1;
    bool with_muster = read_arguments(argc, argv, &hanging);
    /* Open MPI 5 requires both to survive a failure, under any launcher: its tcp writes raise SIGPIPE
     * when a peer has failed, and its hierarchical collectives crash. */
    signal(SIGPIPE, SIG_IGN);
    setenv("OMPI_MCA_coll", "^han", 0);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0); /* for more ranks than cores */
    MPI_Init(&argc, &argv);

    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    open_log(rank);
    state.cells = cells_new(state.count);
    cells_start(state.cells, state.count);
    team.counts = calloc((size_t)ranks, sizeof *team.counts);
    team.places = calloc((size_t)ranks, sizeof *team.places);
    team_renew_buffers(ranks);
    team.scratch = cells_new(state.count);
    if (!team.counts || !team.places)
        MPI_Abort(MPI_COMM_WORLD, 1);
    team_set(MPI_COMM_WORLD);

    if (rank == hanging)
        plan.hang = plan.last > 0 ? plan.last / 2 : 1000;
    if (with_muster) {
        prepare_to_kill_hung_ranks(ranks);
        connect_to_muster(rank, ranks);
        wait_until_all_are_alive(ranks);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* from here on every wait has a deadline */
    pthread_t watchdog_thread;
    watch.deadline_ns = environment_number("SURVIVE_DEADLINE_S", 15) * INT64_C(1000000000);
    if (pthread_create(&watchdog_thread, NULL, watchdog, NULL) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    report_ready();

    compute();

    take_over();
    int exit_code = verify() ? 0 : 1;
    atomic_store(&watch.exit_code, exit_code);
    leave();
    if (team.has_lost_ranks)
        _exit(exit_code); /* MPI_Finalize may wait for failed ranks */
    step_begin("MPI_Finalize");
    MPI_Finalize();
    step_end();
    return exit_code;
}
