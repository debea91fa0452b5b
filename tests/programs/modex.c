/* modex: a PMIx program without MPI. Each rank puts an address, no fence collects them, and all ranks request
 * each of them.
 *
 *   PID rank pid       before the first request
 *   GOT rank from what what a rank has put
 *   LONG rank from beginning length   the same for a long value
 *   LATE rank what     what the last rank puts after others have requested the other values
 *   NONE rank key      a value that no rank puts
 *   DONE rank          after PMIx_Finalize
 *
 * With the argument `wait` rank 0 alone requests the address of rank 1, and the last rank does when it gets
 * SIGUSR1; then both request from rank 1 what it never put. With `much` an address has 300 KiB, and there is
 * no late value. */
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t signalled;
static pmix_proc_t own, all;

static void note(int signal)
{
    signalled = signal;
}

static int barrier(void)
{
    return PMIx_Fence(&all, 1, NULL, 0) == PMIX_SUCCESS;
}

static int put(const char *key, const char *words)
{
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, words, PMIX_STRING);
    return PMIx_Put(PMIX_GLOBAL, key, &value) == PMIX_SUCCESS && PMIx_Commit() == PMIX_SUCCESS;
}

static void get(const char *name, unsigned from, const char *key, int seconds)
{
    pmix_proc_t who;
    pmix_value_t *value = NULL;
    pmix_info_t limit;
    PMIX_LOAD_PROCID(&who, own.nspace, from);
    PMIX_INFO_LOAD(&limit, PMIX_TIMEOUT, &seconds, PMIX_INT);
    int found = PMIx_Get(&who, key, &limit, seconds ? 1 : 0, &value) == PMIX_SUCCESS && value->type == PMIX_STRING;
    if (found && strlen(value->data.string) > 64)
        printf("LONG %u %u %.8s %zu\n", own.rank, from, value->data.string, strlen(value->data.string));
    else if (found)
        printf("%s %u %u %s\n", name, own.rank, from, value->data.string);
    else
        printf("NONE %u %u %s\n", own.rank, from, key);
}

int main(int count, char **words)
{
    pmix_value_t *size;
    static char address[300 * 1024 + 1];
    int waits = count > 1 && strcmp(words[1], "wait") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGUSR1, note);
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIX_LOAD_PROCID(&all, own.nspace, PMIX_RANK_WILDCARD);
    if (PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &size) != PMIX_SUCCESS)
        return 3;
    unsigned last = size->data.uint32 - 1;
    int length = sprintf(address, "street-%u", own.rank);
    int is_long = count > 1 && strcmp(words[1], "much") == 0;
    if (is_long)
        memset(address + length, '.', sizeof address - 1 - length);
    if (!put("address", address))
        return 4;
    /* As many as in an MPI_Init: after these the job has started. */
    for (int round = 0; round < 4; round++)
        if (!barrier())
            return 5;
    printf("PID %u %d\n", own.rank, (int)getpid());
    if (waits) {
        if (own.rank == 0)
            get("GOT", 1, "address", 0);
        while (own.rank != 0 && !signalled)
            usleep(1000);
        if (own.rank == last)
            get("GOT", 1, "address", 0);
        get("GOT", 1, "nothing", 0);
    } else {
        for (unsigned from = 0; from <= last; from++)
            get("GOT", from, "address", 0);
        if (!barrier())
            return 6;
        if (own.rank == last && !is_long && !put("late", "house"))
            return 7;
        if (!is_long)
            get("LATE", last, "late", 0);
        if (own.rank == 0 && !is_long)
            get("GOT", last, "nothing", 1);
        if (!barrier())
            return 8;
    }
    if (PMIx_Finalize(NULL, 0) != PMIX_SUCCESS)
        return 9;
    printf("DONE %u\n", own.rank);
    return 0;
}
