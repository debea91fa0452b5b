/* late FILE: an MPI program whose first rank waits for a file between MPI_Init and MPI_Finalize.
 *
 *   UP rank    after MPI_Init
 *   DONE rank  after MPI_Finalize */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words)
{
    int rank;
    setvbuf(stdout, NULL, _IOLBF, 0);
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    printf("UP %d\n", rank);
    while (rank == 0 && access(words[1], F_OK) != 0)
        usleep(20000);
    MPI_Finalize();
    printf("DONE %d\n", rank);
    return 0;
}
