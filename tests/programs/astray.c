/* astray RANK: causes an error that MPI itself reports. The given rank sends a message to a rank that does
 * not exist. */
#include <mpi.h>
#include <stdlib.h>

int main(int count, char **words)
{
    int rank, none = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (count > 1 && rank == atoi(words[1]))
        MPI_Send(&none, 1, MPI_INT, 99, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
