/* fences: a PMIx program without MPI. The ranks exchange much data by fences.
 *
 *   ASKED rank from length    with `asks`: what the next rank has put, requested before any exchange
 *   FENCE rank round status   the PMIx status of a fence that collects what each rank has put
 *   HAVE rank round length    what the last rank has put, known here without a request
 *   DONE rank                 after PMIx_Finalize
 *
 * fences asks|not BYTES...: a round for each number. Each rank puts that many bytes; with + before the number
 * only the last rank does. The data of a round replaces that of the previous one. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pmix_proc_t own, all;

static int fence(int collect)
{
    pmix_info_t info;
    bool yes = true;
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    return PMIx_Fence(&all, 1, &info, collect ? 1 : 0);
}

static int put(const char *key, size_t length)
{
    pmix_value_t value;
    char *words = malloc(length + 1);
    memset(words, 'a' + own.rank % 26, length);
    words[length] = 0;
    PMIX_VALUE_LOAD(&value, words, PMIX_STRING);
    free(words);
    int put = PMIx_Put(PMIX_GLOBAL, key, &value);
    PMIX_VALUE_DESTRUCT(&value);
    return put == PMIX_SUCCESS && PMIx_Commit() == PMIX_SUCCESS;
}

/* The length of what a rank has put; 0 if there is nothing. */
static size_t get(unsigned from, const char *key, bool is_here)
{
    pmix_proc_t who;
    pmix_value_t *value = NULL;
    pmix_info_t info;
    size_t length = 0;
    PMIX_LOAD_PROCID(&who, own.nspace, from);
    PMIX_INFO_LOAD(&info, PMIX_OPTIONAL, &is_here, PMIX_BOOL);
    if (PMIx_Get(&who, key, &info, is_here ? 1 : 0, &value) == PMIX_SUCCESS && value->type == PMIX_STRING) {
        length = strlen(value->data.string);
        PMIX_VALUE_RELEASE(value);
    }
    return length;
}

int main(int count, char **words)
{
    pmix_value_t *size;
    if (count < 2)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIX_LOAD_PROCID(&all, own.nspace, PMIX_RANK_WILDCARD);
    if (PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &size) != PMIX_SUCCESS)
        return 3;
    unsigned last = size->data.uint32 - 1;
    /* As many as in an MPI_Init: after these the job has started. */
    for (int round = 0; round < 4; round++)
        if (fence(0) != PMIX_SUCCESS)
            return 4;
    if (strcmp(words[1], "asks") == 0) {
        if (!put("asked", 300 * 1024))
            return 5;
        unsigned next = own.rank == last ? 0 : own.rank + 1;
        printf("ASKED %u %u %zu\n", own.rank, next, get(next, "asked", false));
        if (fence(0) != PMIX_SUCCESS)
            return 6;
    }
    for (int round = 2; round < count; round++) {
        char key[32];
        int is_alone = words[round][0] == '+';
        sprintf(key, "round-%d", round - 2);
        size_t length = strtoul(words[round] + is_alone, NULL, 10);
        if ((!is_alone || own.rank == last) && !put(key, length))
            return 7;
        printf("FENCE %u %d %s\n", own.rank, round - 2, PMIx_Error_string(fence(1)));
        printf("HAVE %u %d %zu\n", own.rank, round - 2, get(last, key, true));
    }
    if (fence(0) != PMIX_SUCCESS)
        return 8;
    if (PMIx_Finalize(NULL, 0) != PMIX_SUCCESS)
        return 9;
    printf("DONE %u\n", own.rank);
    return 0;
}
