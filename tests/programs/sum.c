/* sum: an ordinary MPI program. Each rank prints the sum of all ranks: SUM 6 of 4. */
#include <mpi.h>
#include <stdio.h>

int main(int count, char **words)
{
    int rank, size, sum = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("SUM %d of %d\n", sum, size);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
