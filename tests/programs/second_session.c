/* second_session MODE: a PMIx program without MPI whose rank 1 starts another process in its own environment,
 * so that both are rank 1 for the PMIx server. The other process opens a session of its own, and then
 *
 *   leaves   closes it in order
 *   exits    ends without closing it
 *   dies     is killed
 *   kills    closes it in order, and then rank 1 is killed; the others wait for SIGUSR1
 *
 *   SESSION rank         the other process has opened its session
 *   WENT rank            a fence of all ranks after that
 *   DONE rank            after PMIx_Finalize */
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pmix_proc_t own, all;

static int open_session(const char *mode)
{
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 4;
    printf("SESSION %u\n", own.rank);
    if (strcmp(mode, "exits") == 0)
        _exit(0);
    if (strcmp(mode, "dies") == 0)
        raise(SIGKILL);
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 5;
}

static void start_child(char **words)
{
    pid_t child = fork();
    if (child == 0) {
        execl(words[0], words[0], words[1], "session", (char *)NULL);
        _exit(6);
    }
    int status;
    if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 0)
        printf("FAILED %d\n", WEXITSTATUS(status));
}

int main(int count, char **words)
{
    sigset_t wanted;
    int signal;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count < 2)
        return 2;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    if (count > 2)
        return open_session(words[1]);
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 3;
    PMIX_LOAD_PROCID(&all, own.nspace, PMIX_RANK_WILDCARD);
    /* As often as in an MPI_Init: then the job has started. */
    for (int fence = 0; fence < 4; fence++)
        PMIx_Fence(&all, 1, NULL, 0);
    if (own.rank == 1)
        start_child(words);
    if (strcmp(words[1], "kills") == 0) {
        if (own.rank == 1)
            raise(SIGKILL);
        sigwait(&wanted, &signal);
    }
    pmix_status_t answer = PMIx_Fence(&all, 1, NULL, 0);
    printf("WENT %u %d\n", own.rank, answer);
    PMIx_Finalize(NULL, 0);
    printf("DONE %u\n", own.rank);
    return 0;
}
