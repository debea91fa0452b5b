/* tool: a PMIx tool, which is no rank: tool URI [NAMESPACE] JOB. It sends the requests of a tool to the
 * server of a rank, and is killed in the end.
 *
 *   TOOL status NAMESPACE  the status of its connection, and its namespace
 *   REFUSED what           the request was refused; GIVEN if it was not */
#include <pmix_tool.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void print_result(const char *what, pmix_status_t status)
{
    printf("%s %s\n", status == PMIX_SUCCESS ? "GIVEN" : "REFUSED", what);
    fprintf(stderr, "tool: %s: %s\n", what, PMIx_Error_string(status));
}

int main(int argc, char **argv)
{
    pmix_proc_t own, rank;
    pmix_info_t infos[3], word, order, *answer = NULL;
    pmix_query_t query;
    pmix_pdata_t wanted;
    pmix_app_t program;
    char spawned[PMIX_MAX_NSLEN + 1];
    char *job = argv[argc - 1];
    size_t count = 1;
    pmix_rank_t number = 0;
    int ending = SIGKILL;

    memset(&own, 0, sizeof own);
    PMIX_INFO_LOAD(&infos[0], PMIX_SERVER_URI, argv[1], PMIX_STRING);
    if (argc == 4) {
        PMIX_INFO_LOAD(&infos[1], PMIX_TOOL_NSPACE, argv[2], PMIX_STRING);
        PMIX_INFO_LOAD(&infos[2], PMIX_TOOL_RANK, &number, PMIX_PROC_RANK);
        count = 3;
    }
    pmix_status_t status = PMIx_tool_init(&own, infos, count);
    printf("TOOL %s %s\n", PMIx_Error_string(status), own.nspace);
    if (status != PMIX_SUCCESS)
        return 1;

    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_ARGV_APPEND(status, query.keys, PMIX_QUERY_NAMESPACES);
    print_result("query", PMIx_Query_info(&query, 1, &answer, &count));

    PMIX_INFO_LOAD(&word, "word", "said", PMIX_STRING);
    print_result("publish", PMIx_Publish(&word, 1));

    PMIX_PDATA_CONSTRUCT(&wanted);
    PMIX_LOAD_KEY(wanted.key, "word");
    print_result("lookup", PMIx_Lookup(&wanted, 1, NULL, 0));

    PMIX_LOAD_PROCID(&rank, job, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&order, PMIX_JOB_CTRL_SIGNAL, &ending, PMIX_INT);
    print_result("signal", PMIx_Job_control(&rank, 1, &order, 1, &answer, &count));

    PMIX_APP_CONSTRUCT(&program);
    program.cmd = strdup("true");
    program.maxprocs = 1;
    PMIX_ARGV_APPEND(status, program.argv, "true");
    print_result("spawn", PMIx_Spawn(NULL, 0, &program, 1, spawned));

    /* For this request libpmix does not report the result. */
    PMIx_Abort(3, "a tool", &rank, 1);
    fflush(stdout);
    raise(SIGKILL);
    return 0;
}
