/* ring: an ordinary MPI program. Each rank prints its number; a token is passed around until it is zero, then
 * all have seen it. */
#include <mpi.h>
#include <stdio.h>

int main(int count, char **words)
{
    int rank, size, number = 10;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("HELLO %d of %d\n", rank, size);
    fflush(stdout);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    if (rank == 0)
        MPI_Send(&number, 1, MPI_INT, next, 7, MPI_COMM_WORLD);
    do {
        MPI_Recv(&number, 1, MPI_INT, last, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 0)
            number--;
        MPI_Send(&number, 1, MPI_INT, next, 7, MPI_COMM_WORLD);
    } while (number > 0);
    if (rank == 0) /* the last zero is still under way */
        MPI_Recv(&number, 1, MPI_INT, last, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("ROUND %d of %d\n", rank, size);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
