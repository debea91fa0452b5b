/* survive LOST: an MPI program with ULFM that does not use Muster. It adds up numbers until LOST ranks have
 * been lost and the others have continued for a while, and ends with MPI_Finalize.
 *
 *   READY rank pid node    before the first sum
 *   TOLD rank ns           an MPI call has failed, at this time of CLOCK_MONOTONIC
 *   SHRUNK rank size ns    the others continue with this number of ranks
 *   WRONG rank sum         never
 *   DONE rank size         after MPI_Finalize
 *
 * The others continue for 50 sums, at most one per millisecond, and if SURVIVE_UNTIL names a file, until it
 * exists.
 *
 * `survive die-early R`: rank R ends before MPI_Init. `survive abort R`: rank R calls MPI_Abort. */
#include <mpi.h>
#include <mpi-ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void print_text(const char *word, int rank, const char *text)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%s %d %s\n", word, rank, text);
    if (write(1, line, (size_t)length) != length)
        _exit(9);
}

static void print_line(const char *word, int rank, int number, const char *text)
{
    char both[200];
    snprintf(both, sizeof both, "%d %s", number, text);
    print_text(word, rank, both);
}

static MPI_Comm shrink(MPI_Comm all, int rank)
{
    MPI_Comm less = MPI_COMM_NULL;
    char time[32];
    snprintf(time, sizeof time, "%lld", now_ns());
    print_text("TOLD", rank, time);
    MPIX_Comm_revoke(all);
    while (MPIX_Comm_shrink(all, &less) != MPI_SUCCESS)
        ;
    MPI_Comm_set_errhandler(less, MPI_ERRORS_RETURN);
    int size;
    MPI_Comm_size(less, &size);
    snprintf(time, sizeof time, "%lld", now_ns());
    print_line("SHRUNK", rank, size, time);
    return less;
}

int main(int count, char **words)
{
    int number = count > 1 ? atoi(words[count - 1]) : 0;
    const char *rank_text = getenv("PMIX_RANK"), *until = getenv("SURVIVE_UNTIL");
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
    print_line("READY", rank, (int)getpid(), node ? node : "?");
    now = size;
    // All read the same sums, so all leave in the same round: with that file, if it is named.
    int wanted = until != NULL;
    for (int rounds = 0; now > size - lost || rounds < 50 || wanted; rounds++) {
        int own[2] = {1, until && access(until, F_OK) == 0}, sums[2] = {0, 0};
        if (MPI_Allreduce(own, sums, 2, MPI_INT, MPI_SUM, all) != MPI_SUCCESS) {
            all = shrink(all, rank);
            MPI_Comm_size(all, &now);
            rounds = 0;
        } else {
            wanted &= sums[1] == 0;
            if (sums[0] != now)
                print_line("WRONG", rank, sums[0], "");
        }
        usleep(1000);
    }
    MPI_Finalize();
    print_line("DONE", rank, now, "");
    return 0;
}
