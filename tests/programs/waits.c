/* `waits kill|exit|abort`: the last rank dies in this way after a barrier, and the others wait for it in
 * collectives. With `waits` alone no rank dies, and each prints `UP rank`. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words)
{
    const char *how = count > 1 ? words[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    MPI_Init(&count, &words);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!*how)
        printf("UP %d\n", rank);
    if (*how && rank == size - 1) {
        if (strcmp(how, "exit") == 0)
            exit(1);
        if (strcmp(how, "abort") == 0) {
            signal(SIGABRT, SIG_DFL);
            abort();
        }
        raise(SIGKILL);
    }
    for (;;) {
        int one = 1, sum = 0;
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
}
