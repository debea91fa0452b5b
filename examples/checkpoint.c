/* checkpoint.c - checkpoint and restart, for an MPI without fault tolerance.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Each rank updates a number by a chaotic rule that includes its neighbour's number, and writes a checkpoint
 * every EVERY steps. When a rank fails, MPI calls of the other ranks may block forever. A thread that waits
 * for the failure in Muster therefore ends each process at once, with EX_TEMPFAIL (75), and the script that
 * started the job starts it again: it continues from the last checkpoint that all ranks have. The result is
 * compared with a run in one process.
 *
 * Build:  mpicc -std=c11 -D_GNU_SOURCE checkpoint.c -o checkpoint $(pkg-config --cflags --libs muster) -lpthread
 * Run:    for try in 1 2 3; do mpirun -n 4 ./checkpoint DIRECTORY && break; done
 *
 * With CHECKPOINT_KILL=STEP in the environment, the last rank kills itself at that step, if it started from
 * step 0.
 */
#include <muster.h>

#include <inttypes.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 200000, EVERY = 1000, AGAIN = 75 };

static muster_ctx_t *muster;
static int rank, ranks;

static uint64_t rule(uint64_t own, uint64_t left)
{
    own += left * 0x9e3779b97f4a7c15u;
    return own ^ own >> 29;
}

/* Waits for a failed rank, and then ends this process, so that it does not wait for that rank. */
static void *exit_on_failure(void *unused)
{
    int found = muster_wait_ranks(muster, 1, MUSTER_STATE(MUSTER_RANK_FAILED), UINT32_MAX);
    if (found > 0) {
        fprintf(stderr, "rank %d: %d of %d ranks died; the job is to be started again\n", rank, found, ranks);
        muster_leave(muster, AGAIN);
        _exit(AGAIN);
    }
    return unused;
}

static void name_of(char *name, size_t size, const char *directory, int of, int which)
{
    snprintf(name, size, "%s/rank-%d.%d", directory, of, which);
}

/* Writes two files in turn, so that one is complete if this is interrupted. */
static void save(const char *directory, int64_t step, uint64_t value)
{
    char name[4096], next[4100];
    name_of(name, sizeof name, directory, rank, (int)(step / EVERY % 2));
    snprintf(next, sizeof next, "%s.new", name);
    FILE *file = fopen(next, "w");
    if (!file || fprintf(file, "%" PRId64 " %" PRIu64 "\n", step, value) < 0 || fclose(file) != 0 ||
        rename(next, name) != 0) {
        perror(next);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static int load(const char *directory, int which, int64_t *step, uint64_t *value)
{
    char name[4096];
    name_of(name, sizeof name, directory, rank, which);
    FILE *file = fopen(name, "r");
    int read = file && fscanf(file, "%" SCNd64 " %" SCNu64, step, value) == 2;
    if (file)
        fclose(file);
    return read;
}

/* The last step of which every rank has a checkpoint; 0 if there is none. */
static int64_t restore(const char *directory, uint64_t *value)
{
    int64_t steps[2] = {0, 0}, best = 0, all;
    uint64_t values[2];
    for (int which = 0; which < 2; which++)
        if (load(directory, which, &steps[which], &values[which]) && steps[which] > best)
            best = steps[which];
    MPI_Allreduce(&best, &all, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);
    for (int which = 0; which < 2; which++)
        if (all > 0 && steps[which] == all)
            *value = values[which];
    return all;
}

/* The same computation in one process. */
static uint64_t serial(void)
{
    uint64_t *now = calloc((size_t)ranks * 2, sizeof *now), *next = now + ranks, sum = 0;
    for (int of = 0; of < ranks; of++)
        now[of] = (uint64_t)of + 1;
    for (int step = 0; step < STEPS; step++) {
        for (int of = 0; of < ranks; of++)
            next[of] = rule(now[of], now[(of + ranks - 1) % ranks]);
        memcpy(now, next, (size_t)ranks * sizeof *now);
    }
    for (int of = 0; of < ranks; of++)
        sum ^= now[of];
    free(now);
    return sum;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *directory = argc > 1 ? argv[1] : ".", *kill_at = getenv("CHECKPOINT_KILL");
    if (muster_init(NULL, &muster) < 0 ||
        muster_wait_ranks(muster, (uint32_t)ranks, MUSTER_STATE(MUSTER_RANK_ALIVE), 60000) < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, muster_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    pthread_create(&thread, NULL, exit_on_failure, NULL);

    uint64_t own = (uint64_t)rank + 1, left, sum;
    int64_t first = restore(directory, &own);
    if (rank == 0)
        printf("from step %" PRId64 "\n", first), fflush(stdout);
    for (int64_t step = first; step < STEPS; step++) {
        if (kill_at && first == 0 && rank == ranks - 1 && step == atoll(kill_at))
            raise(SIGKILL);
        MPI_Sendrecv(&own, 1, MPI_UINT64_T, (rank + 1) % ranks, 0, &left, 1, MPI_UINT64_T,
                     (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        own = rule(own, left);
        if ((step + 1) % EVERY == 0)
            save(directory, step + 1, own);
    }
    MPI_Reduce(&own, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    int right = rank != 0 || sum == serial();
    if (rank == 0)
        printf("%s\n", right ? "right: as in one process" : "WRONG"), fflush(stdout);
    muster_leave(muster, !right);
    MPI_Finalize();
    return !right;
}
