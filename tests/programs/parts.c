/* parts WORD: prints `PART rank of size in number WORD`, where the number is that of its program in the job
 * (MPI_APPNUM). */
#include <mpi.h>
#include <stdio.h>

int main(int count, char **words)
{
    int rank, size, found, *number;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &found);
    printf("PART %d of %d in %d %s\n", rank, size, found ? *number : -1, words[count - 1]);
    MPI_Finalize();
    return 0;
}
