/* survive LOST: an MPI program with ULFM and nothing of Muster. It sums up numbers until LOST ranks have been lost
 * and the others have gone on for a while, and ends with MPI_Finalize.
 *
 *   READY rank pid node    before the first sum
 *   SHRUNK rank size       the others go on, so many
 *   WRONG rank sum         never
 *   DONE rank size         after MPI_Finalize
 *
 * `survive die-early R`: rank R ends before MPI_Init. `survive abort R`: rank R calls MPI_Abort. */
#include <mpi.h>
#include <mpi-ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char *word, int rank, int number, const char *node)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%s %d %d %s\n", word, rank, number, node);
    if (write(1, line, (size_t)length) != length)
        _exit(9);
}

static MPI_Comm shrink(MPI_Comm all, int rank)
{
    MPI_Comm less = MPI_COMM_NULL;
    MPIX_Comm_revoke(all);
    while (MPIX_Comm_shrink(all, &less) != MPI_SUCCESS)
        ;
    MPI_Comm_set_errhandler(less, MPI_ERRORS_RETURN);
    int size;
    MPI_Comm_size(less, &size);
    say("SHRUNK", rank, size, "");
    return less;
}

int main(int count, char **words)
{
    int number = count > 1 ? atoi(words[count - 1]) : 0;
    const char *rank_text = getenv("PMIX_RANK");
    if (count > 2 && strcmp(words[1], "die-early") == 0 && rank_text && atoi(rank_text) == number)
        return 3;
    MPI_Init(&count, &words);
    int rank, size, now;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count > 2 && strcmp(words[1], "abort") == 0) {
        if (rank == number)
            MPI_Abort(MPI_COMM_WORLD, 5);
        pause();
    }
    int lost = count > 2 ? 0 : number;
    MPI_Comm all = MPI_COMM_WORLD;
    MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
    const char *node = getenv("MUSTER_NODE");
    say("READY", rank, (int)getpid(), node ? node : "?");
    now = size;
    for (int rounds = 0; now > size - lost || rounds < 50; rounds++) {
        int one = 1, sum = 0;
        if (MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, all) != MPI_SUCCESS) {
            all = shrink(all, rank);
            MPI_Comm_size(all, &now);
            rounds = 0;
        } else if (sum != now) {
            say("WRONG", rank, sum, "");
        }
        usleep(1000);
    }
    MPI_Finalize();
    say("DONE", rank, now, "");
    return 0;
}
