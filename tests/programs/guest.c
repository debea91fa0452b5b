/* guest MODE: a PMIx program without MPI whose rank 1 starts another one in its own environment, so that to the PMIx
 * server both are rank 1. That one comes to the server, and then
 *
 *   leaves   leaves it in order
 *   exits    ends without a word
 *   dies     is killed
 *   kills    leaves it in order, and then rank 1 is killed; the others wait for SIGUSR1
 *
 *   GUEST rank           what was started has come to the server
 *   WENT rank            a fence of all ranks after that
 *   DONE rank            after PMIx_Finalize */
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pmix_proc_t own, all;

static int visit(const char *mode)
{
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 4;
    printf("GUEST %u\n", own.rank);
    if (strcmp(mode, "exits") == 0)
        _exit(0);
    if (strcmp(mode, "dies") == 0)
        raise(SIGKILL);
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 5;
}

static void entertain(char **words)
{
    pid_t guest = fork();
    if (guest == 0) {
        execl(words[0], words[0], words[1], "guest", (char *)NULL);
        _exit(6);
    }
    int status;
    if (waitpid(guest, &status, 0) == guest && WIFEXITED(status) && WEXITSTATUS(status) != 0)
        printf("FAILED %d\n", WEXITSTATUS(status));
}

int main(int count, char **words)
{
    sigset_t told;
    int signal;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count < 2)
        return 2;
    sigemptyset(&told);
    sigaddset(&told, SIGUSR1);
    sigprocmask(SIG_BLOCK, &told, NULL);
    if (count > 2)
        return visit(words[1]);
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 3;
    PMIX_LOAD_PROCID(&all, own.nspace, PMIX_RANK_WILDCARD);
    /* As often as an MPI_Init does: then the job has started. */
    for (int fence = 0; fence < 4; fence++)
        PMIx_Fence(&all, 1, NULL, 0);
    if (own.rank == 1)
        entertain(words);
    if (strcmp(words[1], "kills") == 0) {
        if (own.rank == 1)
            raise(SIGKILL);
        sigwait(&told, &signal);
    }
    pmix_status_t answer = PMIx_Fence(&all, 1, NULL, 0);
    printf("WENT %u %d\n", own.rank, answer);
    PMIx_Finalize(NULL, 0);
    printf("DONE %u\n", own.rank);
    return 0;
}
