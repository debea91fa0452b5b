/* An MPI program that records how libmuster-pmpi.so reports its messages: it defines functions with Muster's
 * names itself, and has no agent. Rank 0 receives from the others in every possible way, and compares. The
 * number is how many messages two threads receive from each.
 *
 * Lines on standard output: "DONE rank", "FAIL rank: what". */
#define _GNU_SOURCE
#include <mpi.h>
#include <muster.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 3
#define TURNS 3

/* As in the library: the features of the MPI that this is compiled with. */
#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
#define HAS_ISENDRECV 1
#endif
#if MPI_VERSION >= 4
#define HAS_LARGE_COUNTS 1
#endif

static int rank = -1, size, rounds = 2000;
static atomic_int received[RANKS], sent[RANKS], unexpected;

/* ------------------------------------------------------------------------------ instead of libmuster */

int muster_init(const muster_config_t *config, muster_ctx_t **context)
{
    (void)config;
    *context = (muster_ctx_t *)&unexpected;
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
    atomic_fetch_add(from < RANKS ? &received[from] : &unexpected, 1);
    return 0;
}

int muster_sent_to(muster_ctx_t *context, uint32_t to)
{
    (void)context;
    atomic_fetch_add(to < RANKS ? &sent[to] : &unexpected, 1);
    return 0;
}

/* --------------------------------------------------------------------------------------- the tests */

static void fail(const char *what)
{
    printf("FAIL %d: %s: %d, %d received, %d unexpected\n", rank, what, received[1], received[2], unexpected);
    fflush(stdout);
    _exit(1);
}

/* Checks the reports of messages to rank 0. */
static void expect_sent(int count, const char *what)
{
    if (sent[0] != count || sent[1] || sent[2] || unexpected)
        fail(what);
    sent[0] = 0;
}

/* Checks the reports since the last call. */
static void expect(int of_first, int of_second, const char *what)
{
    if (received[0] || received[1] != of_first || received[2] != of_second || unexpected)
        fail(what);
    received[1] = received[2] = 0;
}

static void send_to_first(int count, int tag)
{
    int numbers[4] = {rank, rank, rank, rank};
    MPI_Send(numbers, count, MPI_INT, 0, tag, MPI_COMM_WORLD);
}

/* Tested without success, then complete: reported once. */
static void tests_without_success(void)
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

/* Of two receives one fails when the other is complete: the complete one is reported, and nothing is left
 * behind. */
static void truncation(void)
{
    int in[2], out = 7;
    MPI_Request requests[2];
    if (rank > 0) {
        if (rank == 2)
            MPI_Recv(in, 1, MPI_INT, 0, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        send_to_first(rank == 2 ? 4 : 1, 2);
        if (rank == 1)
            send_to_first(1, 11);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < 8; i++)
            MPI_Recv(in, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Irecv(&in[0], 1, MPI_INT, 1, 2, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(&in[1], 1, MPI_INT, 2, 2, MPI_COMM_WORLD, &requests[1]);
    MPI_Recv(&out, 1, MPI_INT, 1, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(&out, 1, MPI_INT, 2, 11, MPI_COMM_WORLD);
    if (MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS)
        fail("a message that is too long was accepted");
    expect(2, 0, "MPI_Waitall with an error");
    MPI_Barrier(MPI_COMM_WORLD);
    /* These may get the handles of the earlier ones. */
    for (int i = 0; i < 8; i++) {
        for (int to = 1; to < size; to++)
            MPI_Isend(&out, 1, MPI_INT, to, 3, MPI_COMM_WORLD, &requests[to - 1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
    expect(0, 0, "sends");
}

static void *receive(void *from)
{
    for (int i = 0; i < rounds; i++) {
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

/* Two threads receive at once, each from its own sender: MPI gives a handle that one has finished with to the
 * other. */
static void threads(void)
{
    static int ranks[RANKS] = {0, 1, 2};
    pthread_t others[RANKS];
    for (int i = 0; rank > 0 && i < rounds; i++)
        send_to_first(1, 4);
    if (rank > 0)
        return;
    for (int from = 1; from < size; from++)
        if (pthread_create(&others[from], NULL, receive, &ranks[from]))
            fail("pthread_create");
    for (int from = 1; from < size; from++)
        pthread_join(others[from], NULL);
    expect(rounds, rounds, "two threads");
}

/* Probed first, then received: by MPI_Mprobe and MPI_Mrecv, by MPI_Improbe and MPI_Imrecv. */
static void matched(void)
{
    int in, flag = 0;
    MPI_Message message;
    MPI_Request request;
    if (rank > 0) {
        send_to_first(1, 5);
        return;
    }
    MPI_Mprobe(1, 5, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
    MPI_Mrecv(&in, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
    while (!flag)
        MPI_Improbe(2, 5, MPI_COMM_WORLD, &flag, &message, MPI_STATUS_IGNORE);
    MPI_Imrecv(&in, 1, MPI_INT, &message, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Mprobe(MPI_PROC_NULL, 5, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
    MPI_Mrecv(&in, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
    expect(1, 1, "matched probes");
}

/* Persistent sends are reported each time they are started, not when they are created. */
static void send_persistently(void)
{
    static char room[MPI_BSEND_OVERHEAD + 100];
    void *old;
    int out = rank, old_size, count = 3;
    MPI_Request requests[5];
    sent[0] = 0;
    MPI_Buffer_attach(room, sizeof room);
    MPI_Send_init(&out, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, &requests[0]);
    MPI_Ssend_init(&out, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, &requests[1]);
    MPI_Bsend_init(&out, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, &requests[2]);
#ifdef HAS_LARGE_COUNTS
    MPI_Send_init_c(&out, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, &requests[count++]);
#endif
    expect_sent(0, "sends that are not started");
    for (int turn = 0; turn < TURNS; turn++) {
        MPI_Startall(count, requests);
        expect_sent(count, "MPI_Startall of sends");
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        MPI_Start(&requests[0]);
        expect_sent(1, "MPI_Start of a send");
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    }
    for (int i = 0; i < count; i++)
        MPI_Request_free(&requests[i]);
    MPI_Buffer_detach(&old, &old_size);
}

/* A persistent receive completes repeatedly: by each of the completion calls. */
static void complete_persistent(MPI_Request requests[2], int way)
{
    int flag = 0, done = 0, total = 0, index[2];
    switch (way) {
    case 0:
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        while (!flag)
            MPI_Test(&requests[1], &flag, MPI_STATUS_IGNORE);
        return;
    case 1:
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        return;
    case 2:
        while (!flag)
            MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
        return;
    case 3:
        MPI_Waitany(2, requests, index, MPI_STATUS_IGNORE);
        while (!flag)
            MPI_Testany(2, requests, index, &flag, MPI_STATUS_IGNORE);
        return;
    default:
        for (; total < 2; total += done > 0 ? done : 0)
            if (way % 2)
                MPI_Waitsome(2, requests, &done, index, MPI_STATUSES_IGNORE);
            else
                MPI_Testsome(2, requests, &done, index, MPI_STATUSES_IGNORE);
    }
}

static void persistent(void)
{
    enum { WAYS = 6 };
    int in[2];
    MPI_Request requests[2];
    if (rank > 0) {
        int each = 4;
#ifdef HAS_LARGE_COUNTS
        each++;
#endif
        send_persistently();
        for (int i = TURNS * each; i < (TURNS + 1) * WAYS * TURNS; i++)
            send_to_first(1, 6);
        return;
    }
    MPI_Recv_init(&in[0], 1, MPI_INT, 1, 6, MPI_COMM_WORLD, &requests[0]);
#ifdef HAS_LARGE_COUNTS
    MPI_Recv_init_c(&in[1], 1, MPI_INT, 2, 6, MPI_COMM_WORLD, &requests[1]);
#else
    MPI_Recv_init(&in[1], 1, MPI_INT, 2, 6, MPI_COMM_WORLD, &requests[1]);
#endif
    for (int turn = 0; turn < (TURNS + 1) * WAYS * TURNS; turn++) {
        if (turn % 2) {
            MPI_Startall(2, requests);
        } else {
            MPI_Start(&requests[0]);
            MPI_Start(&requests[1]);
        }
        complete_persistent(requests, turn % WAYS);
        expect(1, 1, "a persistent receive");
        /* No receive is active now. */
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        expect(0, 0, "a persistent receive that is not started");
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
}

/* Cancelled while it waits: reported for no rank. */
static void cancelled(void)
{
    int in;
    MPI_Request request;
    if (rank > 0)
        return;
    MPI_Irecv(&in, 1, MPI_INT, 1, 99, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(0, 0, "a receive that was cancelled");
}

/* Send and receive in one call. */
static void exchanges(void)
{
    int out = rank, in, expected = 2;
    sent[0] = sent[1] = sent[2] = received[0] = 0;
    for (int with = rank ? 0 : 1; rank ? with == 0 : with < size; with++) {
        MPI_Sendrecv(&out, 1, MPI_INT, with, 7, &in, 1, MPI_INT, with, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv_replace(&in, 1, MPI_INT, with, 7, with, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#ifdef HAS_ISENDRECV
        MPI_Request requests[2];
        MPI_Isendrecv(&out, 1, MPI_INT, with, 8, &in, 1, MPI_INT, with, 8, MPI_COMM_WORLD, &requests[0]);
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        MPI_Isendrecv_replace(&in, 1, MPI_INT, with, 9, with, 9, MPI_COMM_WORLD, &requests[1]);
        MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
#endif
#ifdef HAS_LARGE_COUNTS
        MPI_Sendrecv_c(&out, 1, MPI_INT, with, 7, &in, 1, MPI_INT, with, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Isendrecv_c(&out, 1, MPI_INT, with, 8, &in, 1, MPI_INT, with, 8, MPI_COMM_WORLD, &requests[0]);
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        MPI_Isend_c(&out, 1, MPI_INT, with, 8, MPI_COMM_WORLD, &requests[0]);
        MPI_Recv_c(&in, 1, MPI_INT, with, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Irecv_c(&in, 1, MPI_INT, with, 8, MPI_COMM_WORLD, &requests[1]);
        MPI_Send_c(&out, 1, MPI_INT, with, 8, MPI_COMM_WORLD);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
#endif
    }
#ifdef HAS_ISENDRECV
    expected += 2;
#endif
#ifdef HAS_LARGE_COUNTS
    expected += 4;
#endif
    if (rank > 0) {
        if (received[0] != expected)
            fail("exchanges");
        received[0] = 0;
        expect_sent(expected, "sends of exchanges");
    } else {
        expect(expected, expected, "exchanges");
    }
}

/* Rank 0 in one group, the others in the other: there a source has a different number than in the job. */
static void between_groups(void)
{
    int in, out = 7;
    MPI_Comm side, both;
    MPI_Comm_split(MPI_COMM_WORLD, rank > 0, rank, &side);
    MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, rank ? 0 : 1, 10, &both);
    sent[0] = received[0] = received[1] = received[2] = 0;
    if (rank > 0) {
        MPI_Send(&out, 1, MPI_INT, 0, 10, both);
        expect_sent(1, "a send between groups");
    } else {
        MPI_Recv(&in, 1, MPI_INT, 1, 10, both, MPI_STATUS_IGNORE);
        expect(0, 1, "the second of the other group");
        MPI_Recv(&in, 1, MPI_INT, 0, 10, both, MPI_STATUS_IGNORE);
        expect(1, 0, "the first of the other group");
    }
    MPI_Comm_free(&both);
    MPI_Comm_free(&side);
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
    if (argc > 1)
        rounds = atoi(argv[1]);
    tests_without_success();
    truncation();
    threads();
    matched();
    persistent();
    cancelled();
    exchanges();
    between_groups();
    MPI_Finalize();
    printf("DONE %d\n", rank);
    return 0;
}
