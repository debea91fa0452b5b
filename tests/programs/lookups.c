/* lookups: a PMIx program without MPI. Rank 0 publishes a number and a text; the last rank looks both up,
 * sends SIGUSR1 to rank 0 and finalizes with all others.
 *
 *   FOUND number text  the values that were found
 *   NONE               a name that was not published is not found
 *   SIGNALLED          rank 0 has the signal
 *   DONE rank          after PMIx_Finalize */
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t signalled;

static void note(int signal)
{
    signalled = signal;
}

int main(void)
{
    pmix_proc_t own, all, first;
    pmix_value_t *size;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGUSR1, note);
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIX_LOAD_PROCID(&all, own.nspace, PMIX_RANK_WILDCARD);
    PMIX_LOAD_PROCID(&first, own.nspace, 0);
    if (PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &size) != PMIX_SUCCESS)
        return 3;
    if (own.rank == 0) {
        pmix_info_t left[2];
        uint32_t number = 4711;
        PMIX_INFO_LOAD(&left[0], "number", &number, PMIX_UINT32);
        PMIX_INFO_LOAD(&left[1], "text", "words", PMIX_STRING);
        if (PMIx_Publish(left, 2) != PMIX_SUCCESS)
            return 4;
        if (PMIx_Publish(left, 1) == PMIX_SUCCESS)
            return 5;
    }
    if (PMIx_Fence(&all, 1, NULL, 0) != PMIX_SUCCESS)
        return 6;
    if (own.rank == size->data.uint32 - 1) {
        pmix_pdata_t found[2];
        PMIX_PDATA_CONSTRUCT(&found[0]);
        PMIX_PDATA_CONSTRUCT(&found[1]);
        strcpy(found[0].key, "number");
        strcpy(found[1].key, "text");
        if (PMIx_Lookup(found, 2, NULL, 0) != PMIX_SUCCESS)
            return 7;
        printf("FOUND %u %s\n", found[0].value.data.uint32, found[1].value.data.string);
        strcpy(found[0].key, "unpublished");
        if (PMIx_Lookup(found, 1, NULL, 0) != PMIX_SUCCESS)
            printf("NONE\n");
        pmix_info_t what;
        int number = SIGUSR1;
        pmix_info_t *answer = NULL;
        size_t answers = 0;
        PMIX_INFO_LOAD(&what, PMIX_JOB_CTRL_SIGNAL, &number, PMIX_INT);
        if (PMIx_Job_control(&first, 1, &what, 1, &answer, &answers) != PMIX_SUCCESS)
            return 8;
    }
    while (own.rank == 0 && !signalled)
        usleep(1000);
    if (own.rank == 0)
        printf("SIGNALLED\n");
    if (PMIx_Fence(&all, 1, NULL, 0) != PMIX_SUCCESS || PMIx_Finalize(NULL, 0) != PMIX_SUCCESS)
        return 9;
    printf("DONE %u\n", own.rank);
    return 0;
}
