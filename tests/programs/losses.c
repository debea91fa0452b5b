/* Ranks that die at the most difficult points, in MPI with fault tolerance (run-1).
   `losses MODE [MICROSECONDS]`: how the ranks die. For the modes that kill a rank within a call: the delay after the
   start of the call. Each survivor shrinks the world to the remaining ranks, adds up ones over them and prints
   "SURVIVED rank size". "WRONG ..." is an error. */
#include <mpi.h>
#include <mpi-ext.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static int rank, size;
static long delay_us;

static void die(void)
{
    raise(SIGKILL);
}

static void on_alarm(int number)
{
    (void)number;
    die();
}

/* Dies after the delay, whatever it does then. */
static void die_soon(void)
{
    signal(SIGALRM, on_alarm);
    if (delay_us < 1)
        die();
    struct itimerval once = {{0, 0}, {delay_us / 1000000, delay_us % 1000000}};
    setitimer(ITIMER_REAL, &once, NULL);
}

static void wrong(const char *what, int number)
{
    printf("WRONG %d %s %d\n", rank, what, number);
    fflush(stdout);
    _exit(9);
}

static MPI_Comm shrink(MPI_Comm old)
{
    MPI_Comm less = MPI_COMM_NULL;
    int code;
    MPIX_Comm_revoke(old);
    while ((code = MPIX_Comm_shrink(old, &less)) != MPI_SUCCESS) {
        int kind;
        MPI_Error_class(code, &kind);
        if (kind != MPIX_ERR_PROC_FAILED && kind != MPIX_ERR_PROC_FAILED_PENDING)
            wrong("shrink", kind);
    }
    MPI_Comm_set_errhandler(less, MPI_ERRORS_RETURN);
    return less;
}

/* Barriers until one fails: a rank of it is gone, or another rank has seen that and revoked it. */
static void await_loss(MPI_Comm all)
{
    while (MPI_Barrier(all) == MPI_SUCCESS)
        ;
}

/* Shrinks until `wanted` ranks are left and a sum over them is right, and all of them know that. */
static MPI_Comm settle(MPI_Comm all, int wanted)
{
    for (;;) {
        int one = 1, sum = 0, now;
        MPI_Comm_size(all, &now);
        if (now < wanted)
            wrong("size", now);
        int code = MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, all);
        if (code != MPI_SUCCESS)
            MPIX_Comm_revoke(all);
        int is_over = code == MPI_SUCCESS && now == wanted;
        if (is_over && sum != wanted)
            wrong("sum", sum);
        if (MPIX_Comm_agree(all, &is_over) == MPI_SUCCESS && is_over)
            return all;
        all = shrink(all);
    }
}

static int is(const char *mode, const char *name)
{
    return strcmp(mode, name) == 0;
}

int main(int count, char **words)
{
    const char *mode = count > 1 ? words[1] : "init";
    delay_us = count > 2 ? atol(words[2]) : 0;
    MPI_Init(&count, &words);
    MPI_Comm world = MPI_COMM_WORLD;
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    int last = rank == size - 1, lastbutone = rank == size - 2, lost = 1;

    if (is(mode, "init")) {
        if (last)
            die();
    } else if (is(mode, "segv")) {
        if (last) {
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        }
    } else if (is(mode, "exit")) {
        if (last)
            _exit(1);
    } else if (is(mode, "barrier")) {
        if (last) {
            MPI_Request request;
            MPI_Ibarrier(world, &request);
            die();
        }
    } else if (is(mode, "two")) {
        if (last)
            die();
        world = settle(world, size - 1);
        if (lastbutone)
            die();
        lost = 2;
    } else if (is(mode, "most")) {
        if (rank > 0)
            die();
        lost = size - 1;
    } else if (is(mode, "sub")) {
        MPI_Comm half;
        MPI_Comm_split(world, rank % 2, rank, &half);
        MPI_Comm_set_errhandler(half, MPI_ERRORS_RETURN);
        if (last)
            die();
        if (rank % 2 == (size - 1) % 2) {
            int members;
            MPI_Comm_size(half, &members);
            settle(half, members - 1);
        } else if (MPI_Barrier(half) != MPI_SUCCESS) {
            wrong("the other half", 0);
        }
    } else if (is(mode, "shrink")) {
        if (last)
            die();
        await_loss(world);
        if (lastbutone)
            die_soon();
        world = shrink(world);
        if (lastbutone)
            pause();
        lost = 2;
    } else if (is(mode, "agree")) {
        if (last)
            die();
        await_loss(world);
        MPIX_Comm_revoke(world);
        if (lastbutone)
            die_soon();
        int flag = 1 << rank | 1 << 30, code;
        code = MPIX_Comm_agree(world, &flag);
        int kind = MPI_SUCCESS;
        MPI_Error_class(code, &kind);
        if (kind != MPI_SUCCESS && kind != MPIX_ERR_PROC_FAILED)
            wrong("agree", kind);
        if (lastbutone)
            pause();
        lost = 2;
        /* All remaining ranks have agreed on the same value. */
        world = settle(world, size - lost);
        int least, greatest;
        MPI_Allreduce(&flag, &least, 1, MPI_INT, MPI_MIN, world);
        MPI_Allreduce(&flag, &greatest, 1, MPI_INT, MPI_MAX, world);
        if (least != greatest)
            wrong("agreed on", flag);
    } else if (is(mode, "revoke")) {
        if (last)
            die();
        if (lastbutone) {
            die_soon();
            MPIX_Comm_revoke(world);
            pause();
        }
        lost = 2;
    } else if (is(mode, "inter")) {
        MPI_Comm half, both;
        int upper = rank >= size / 2;
        MPI_Comm_split(world, upper, rank, &half);
        MPI_Intercomm_create(half, 0, world, upper ? 0 : size / 2, 7, &both);
        MPI_Comm_set_errhandler(half, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(both, MPI_ERRORS_RETURN);
        /* Open MPI 5.0.11 crashes if a rank dies while others still create the communicator
         * (ompi_comm_revoke_local); after this barrier all have created it. */
        MPI_Barrier(world);
        if (last)
            die();
        await_loss(both);
        MPIX_Comm_revoke(both);
    } else {
        wrong("mode", 0);
    }
    world = settle(world, size - lost);
    printf("SURVIVED %d %d\n", rank, size - lost);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
