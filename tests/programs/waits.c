/* `waits kill|exit|abort`: the last rank dies so after a barrier, and the others wait for it in collectives. */
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
    const char *how = count > 1 ? words[1] : "kill";
    MPI_Init(&count, &words);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1) {
        if (strcmp(how, "exit") == 0)
            _exit(1);
        if (strcmp(how, "abort") == 0) {
            signal(SIGABRT, SIG_DFL);
            abort();
        }
        raise(SIGKILL);
    }
    for (int rounds = 0; rounds < 1000; rounds++) {
        int one = 1, sum = 0;
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
