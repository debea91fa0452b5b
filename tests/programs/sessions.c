/* sessions: each rank creates a communicator of mpi://WORLD without MPI_Init, twice, and one of the even
 * ranks.
 *
 *   SETS rank number       the result of MPI_Session_get_num_psets
 *   SUM rank sum           of the ranks
 *   EVEN rank sum          of the even ranks
 *   DONE rank              after MPI_Session_finalize
 *
 * sessions again: then each rank opens a second session and creates one more communicator; the last rank
 * kills itself, and the others stay. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int sum(MPI_Comm all, int number)
{
    int total = -1;
    MPI_Allreduce(&number, &total, 1, MPI_INT, MPI_SUM, all);
    return total;
}

static void again(void)
{
    MPI_Session session;
    MPI_Group world;
    MPI_Comm all;
    int rank, size;

    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &world);
    MPI_Group_rank(world, &rank);
    MPI_Group_size(world, &size);
    MPI_Comm_create_from_group(world, "again", MPI_INFO_NULL, MPI_ERRORS_RETURN, &all);
    printf("SUM %d %d\n", rank, sum(all, rank));
    if (rank == size - 1)
        raise(SIGKILL);
    for (;;)
        pause();
}

int main(int count, char **words)
{
    MPI_Session session;
    MPI_Group world, even;
    MPI_Comm all;
    int rank, size, sets;

    if (MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session) != MPI_SUCCESS)
        return 2;
    MPI_Session_get_num_psets(session, MPI_INFO_NULL, &sets);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &world);
    MPI_Group_rank(world, &rank);
    MPI_Group_size(world, &size);
    printf("SETS %d %d\n", rank, sets);
    for (int turn = 0; turn < 2; turn++) {
        MPI_Comm_create_from_group(world, "whole", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &all);
        printf("SUM %d %d\n", rank, sum(all, rank));
        MPI_Comm_free(&all);
    }
    if (rank % 2 == 0) {
        int range[1][3] = {{0, size - 1, 2}};
        MPI_Group_range_incl(world, 1, range, &even);
        MPI_Comm_create_from_group(even, "even", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &all);
        printf("EVEN %d %d\n", rank, sum(all, rank));
        MPI_Comm_free(&all);
        MPI_Group_free(&even);
    }
    MPI_Group_free(&world);
    MPI_Session_finalize(&session);
    printf("DONE %d\n", rank);
    fflush(stdout);
    if (count > 1)
        again();
    (void)words;
    return 0;
}
