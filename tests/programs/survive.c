/* survive LOST: an MPI program with ULFM and nothing of Muster. It sums up numbers until LOST ranks have been lost
 * and the others have gone on for a while, and ends with MPI_Finalize.
 *
 *   READY rank pid node    before the first sum
 *   TOLD rank ns           an MPI call has failed, at this time of CLOCK_MONOTONIC
 *   SHRUNK rank size ns    the others go on, so many
 *   WRONG rank sum         never
 *   DONE rank size         after MPI_Finalize
 *
 * SURVIVE_ROUNDS is for how many sums they go on (50 if it is not set), one a millisecond at most.
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

static void say_text(const char *word, int rank, const char *text)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%s %d %s\n", word, rank, text);
    if (write(1, line, (size_t)length) != length)
        _exit(9);
}

static void say(const char *word, int rank, int number, const char *text)
{
    char both[200];
    snprintf(both, sizeof both, "%d %s", number, text);
    say_text(word, rank, both);
}

static MPI_Comm shrink(MPI_Comm all, int rank)
{
    MPI_Comm less = MPI_COMM_NULL;
    char time[32];
    snprintf(time, sizeof time, "%lld", now_ns());
    say_text("TOLD", rank, time);
    MPIX_Comm_revoke(all);
    while (MPIX_Comm_shrink(all, &less) != MPI_SUCCESS)
        ;
    MPI_Comm_set_errhandler(less, MPI_ERRORS_RETURN);
    int size;
    MPI_Comm_size(less, &size);
    snprintf(time, sizeof time, "%lld", now_ns());
    say("SHRUNK", rank, size, time);
    return less;
}

int main(int count, char **words)
{
    int number = count > 1 ? atoi(words[count - 1]) : 0;
    const char *rank_text = getenv("PMIX_RANK"), *rounds_text = getenv("SURVIVE_ROUNDS");
    int least = rounds_text ? atoi(rounds_text) : 50;
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
    for (int rounds = 0; now > size - lost || rounds < least; rounds++) {
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
