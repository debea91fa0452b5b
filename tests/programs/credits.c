/* An MPI program that counts what libmuster-pmpi.so says of its messages: it has functions of Muster's names of
 * its own, and no agent. Rank 0 receives in every way from the others, and compares.
 *
 * Lines on standard output: "DONE rank", "FAIL rank: what". */
#define _GNU_SOURCE
#include <mpi.h>
#include <muster.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 2000
#define RANKS 3

static int rank = -1, size;
static atomic_int heard[RANKS], strange;

/* ------------------------------------------------------------------------------ instead of libmuster */

int muster_init(const muster_config_t *config, muster_ctx_t **context)
{
    (void)config;
    *context = (muster_ctx_t *)&strange;
    return 0;
}

int muster_finalize(muster_ctx_t *context)
{
    (void)context;
    return 0;
}

int muster_heard_from(muster_ctx_t *context, uint32_t from)
{
    (void)context;
    atomic_fetch_add(from < RANKS ? &heard[from] : &strange, 1);
    return 0;
}

int muster_sent_to(muster_ctx_t *context, uint32_t to)
{
    (void)context;
    if (to >= RANKS)
        atomic_fetch_add(&strange, 1);
    return 0;
}

/* --------------------------------------------------------------------------------------- the stories */

static void fail(const char *what)
{
    printf("FAIL %d: %s: %d, %d heard, %d strange\n", rank, what, heard[1], heard[2], strange);
    fflush(stdout);
    _exit(1);
}

/* What was said since the last time. */
static void expect(int of_first, int of_second, const char *what)
{
    if (heard[0] || heard[1] != of_first || heard[2] != of_second || strange)
        fail(what);
    heard[1] = heard[2] = 0;
}

static void send_to_first(int count, int tag)
{
    int numbers[4] = {rank, rank, rank, rank};
    MPI_Send(numbers, count, MPI_INT, 0, tag, MPI_COMM_WORLD);
}

/* Tested in vain, then complete: once. */
static void patience(void)
{
    int in, flag = 0;
    MPI_Request request;
    if (rank > 0) {
        MPI_Barrier(MPI_COMM_WORLD);
        send_to_first(1, 1);
        return;
    }
    for (int from = 1; from < size; from++, flag = 0) {
        MPI_Irecv(&in, 1, MPI_INT, from, 1, MPI_COMM_WORLD, &request);
        if (from == 1) {
            MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
            expect(0, 0, "a receive under way");
            MPI_Barrier(MPI_COMM_WORLD);
        }
        while (!flag)
            MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    }
    expect(1, 1, "MPI_Test");
}

/* Of two receives one goes wrong: of the other it is said, and nothing is left behind. */
static void truncation(void)
{
    int in[2], out = 7;
    MPI_Request requests[2];
    if (rank > 0) {
        send_to_first(rank == 2 ? 4 : 1, 2);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < 8; i++)
            MPI_Recv(in, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Irecv(&in[0], 1, MPI_INT, 1, 2, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(&in[1], 1, MPI_INT, 2, 2, MPI_COMM_WORLD, &requests[1]);
    if (MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS)
        fail("a message that is too long was taken");
    expect(1, 0, "MPI_Waitall with an error");
    MPI_Barrier(MPI_COMM_WORLD);
    /* These may have the handles of those. */
    for (int i = 0; i < 8; i++) {
        for (int to = 1; to < size; to++)
            MPI_Isend(&out, 1, MPI_INT, to, 3, MPI_COMM_WORLD, &requests[to - 1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
    expect(0, 0, "sends");
}

static void *receive(void *from)
{
    for (int i = 0; i < ROUNDS; i++) {
        int in, index = 0, flag = 0, done = 0;
        MPI_Request request;
        MPI_Irecv(&in, 1, MPI_INT, *(int *)from, 4, MPI_COMM_WORLD, &request);
        switch (i % 4) {
        case 0:
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            break;
        case 1:
            while (!flag)
                MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
            break;
        case 2:
            MPI_Waitany(1, &request, &index, MPI_STATUS_IGNORE);
            break;
        default:
            while (done == 0)
                MPI_Testsome(1, &request, &done, &index, MPI_STATUSES_IGNORE);
        }
    }
    return NULL;
}

/* Two threads receive at once, each from its own: MPI gives the handle that one is done with to the other. */
static void threads(void)
{
    static int ranks[RANKS] = {0, 1, 2};
    pthread_t others[RANKS];
    for (int i = 0; rank > 0 && i < ROUNDS; i++)
        send_to_first(1, 4);
    if (rank > 0)
        return;
    for (int from = 1; from < size; from++)
        if (pthread_create(&others[from], NULL, receive, &ranks[from]))
            fail("pthread_create");
    for (int from = 1; from < size; from++)
        pthread_join(others[from], NULL);
    expect(ROUNDS, ROUNDS, "two threads");
}

int main(int argc, char **argv)
{
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (size != RANKS || provided != MPI_THREAD_MULTIPLE)
        fail("three ranks and threads are needed");
    patience();
    truncation();
    threads();
    MPI_Finalize();
    printf("DONE %d\n", rank);
    return 0;
}
