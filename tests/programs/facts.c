/* facts: a PMIx program without MPI. Each rank requests what a PMIx server must know of a job and its ranks.
 *
 *   GET key number     the value of PMIx_Get, for this rank or the job
 *   PEERS count        the number of ranks of this node, from PMIX_LOCAL_PROCS
 *   QUERY key value    the value of PMIx_Query_info
 *   MISSING key status the error of either
 *   PREFIX path        PMIX_PREFIX, or "none"
 *   DONE rank          after PMIx_Finalize */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void get(const pmix_proc_t *of, const char *key)
{
    pmix_value_t *value;
    pmix_status_t status = PMIx_Get(of, key, NULL, 0, &value);
    if (status != PMIX_SUCCESS) {
        printf("MISSING %s %s\n", key, PMIx_Error_string(status));
        return;
    }
    switch (value->type) {
    case PMIX_UINT16:
        printf("GET %s %u\n", key, value->data.uint16);
        break;
    case PMIX_UINT32:
        printf("GET %s %u\n", key, value->data.uint32);
        break;
    case PMIX_PROC_RANK:
        printf("GET %s %u\n", key, value->data.rank);
        break;
    case PMIX_PID:
        printf("GET %s %d\n", key, (int)value->data.pid);
        break;
    case PMIX_DATA_ARRAY:
        printf("PEERS %zu\n", value->data.darray->size);
        break;
    default:
        printf("GET %s of type %u\n", key, value->type);
    }
    PMIX_VALUE_RELEASE(value);
}

static void query(const char *key)
{
    pmix_query_t asked;
    pmix_info_t *found = NULL;
    size_t count = 0;
    pmix_status_t status;
    PMIX_QUERY_CONSTRUCT(&asked);
    PMIX_ARGV_APPEND(status, asked.keys, key);
    status = PMIx_Query_info(&asked, 1, &found, &count);
    if (status != PMIX_SUCCESS || count == 0)
        printf("MISSING query %s %s\n", key, PMIx_Error_string(status));
    else if (found[0].value.type == PMIX_STRING)
        printf("QUERY %s %s\n", key, found[0].value.data.string);
    else if (found[0].value.type == PMIX_UINT32)
        printf("QUERY %s %u\n", key, found[0].value.data.uint32);
    else if (found[0].value.type == PMIX_SIZE)
        printf("QUERY %s %zu\n", key, found[0].value.data.size);
    else
        printf("QUERY %s of type %u\n", key, found[0].value.type);
}

int main(void)
{
    pmix_proc_t own, job;
    const char *of_rank[] = {PMIX_APPNUM, PMIX_APP_RANK, PMIX_GLOBAL_RANK, PMIX_REINCARNATION, PMIX_LOCAL_RANK,
                             PMIX_NODEID};
    const char *of_job[] = {PMIX_LOCAL_PROCS, PMIX_APP_SIZE, PMIX_JOB_SIZE};
    const char *asked[] = {PMIX_JOB_SIZE, PMIX_QUERY_NAMESPACES, PMIX_QUERY_NUM_PSETS, PMIX_QUERY_PSET_NAMES};
    const char *prefix = getenv("PMIX_PREFIX");

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIX_LOAD_PROCID(&job, own.nspace, PMIX_RANK_WILDCARD);
    for (size_t at = 0; at < sizeof of_rank / sizeof *of_rank; at++)
        get(&own, of_rank[at]);
    for (size_t at = 0; at < sizeof of_job / sizeof *of_job; at++)
        get(&job, of_job[at]);
    for (size_t at = 0; at < sizeof asked / sizeof *asked; at++)
        query(asked[at]);
    printf("PREFIX %s\n", prefix ? prefix : "none");
    PMIx_Fence(&job, 1, NULL, 0);
    PMIx_Finalize(NULL, 0);
    printf("DONE %u\n", own.rank);
    return 0;
}
