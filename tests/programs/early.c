/* early [RANK]: a PMIx program that stays between PMIx_Init and its first fence, but for a rank that dies there.
 *
 *   INIT rank  after PMIx_Init */
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
    pmix_proc_t own;
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 2;
    printf("INIT %u\n", own.rank);
    fflush(stdout);
    if (count > 1 && own.rank == (unsigned)atoi(words[1]))
        raise(SIGKILL);
    for (;;)
        pause();
}
