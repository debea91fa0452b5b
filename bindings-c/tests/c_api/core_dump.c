/* A rank that fails by a segmentation fault, with a long core dump and without one, and the event that another rank
 * gets. Exit code 0 if all checks pass. */
#include "check.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_MS 60000
/* A mapping without content, so that the dump is small; but the kernel walks all of its pages, which takes long. */
#define LARGE ((size_t)1 << 40)

static muster_ctx_t *attach(int rank)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "core_dump.c";
    config.node = "here";
    config.rank = rank;
    config.ranks = 3;
    int status = muster_init(&config, &context);
    if (status < 0)
        printf("rank %d: %s: %s\n", rank, muster_strerror(status), muster_last_error_message());
    return context;
}

/* Whether this process dumps core to a file. With a pipe, the length of a dump is not known. */
static int may_dump(void)
{
    struct rlimit limit;
    FILE *file = fopen("/proc/sys/kernel/core_pattern", "r");
    int first = file ? fgetc(file) : '|';
    if (file)
        fclose(file);
    if (getrlimit(RLIMIT_CORE, &limit) < 0 || limit.rlim_max < 1 << 20)
        return 0;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_CORE, &limit) == 0 && first != '|' && first != '@' && first != '\n';
}

struct rank {
    int number;
    pid_t pid;
    int go, reports;
};

static int make_last(void)
{
    char *large = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (large == MAP_FAILED)
        return 0;
    *large = 1;
    return 1;
}

/* Starts a rank that fails on request, and reports before whether its dump will be long. Call it before this process
 * attaches: a child that is forked from an attached process cannot attach. */
static struct rank start(int number, int is_long)
{
    int orders[2], answers[2];
    CHECK(pipe(orders) == 0 && pipe(answers) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        char order, answer = 'n';
        close(orders[1]);
        if (chdir(getenv("MUSTER_DIR")) < 0 || !attach(number) || read(orders[0], &order, 1) != 1)
            _exit(3);
        if (!is_long)
            setrlimit(RLIMIT_CORE, &none);
        else if (may_dump() && make_last())
            answer = 'y';
        if (write(answers[1], &answer, 1) != 1)
            _exit(3);
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
        _exit(3);
    }
    CHECK(child > 0);
    close(orders[0]);
    close(answers[1]);
    return (struct rank){number, child, orders[1], answers[0]};
}

static void check_death(muster_ctx_t *context, struct rank *rank)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[256] = "", begin[64], lasts = '?';
    uint32_t number = (uint32_t)rank->number;
    CHECK(write(rank->go, "x", 1) == 1 && read(rank->reports, &lasts, 1) == 1);
    CHECK(muster_wait_rank(context, number, MUSTER_STATE(MUSTER_RANK_FAILED), DEADLINE_MS) == MUSTER_RANK_FAILED);
    while (muster_poll_events(context, &event, 1, DEADLINE_MS) == 1 && event.kind != MUSTER_EVENT_RANK_FAILED)
        ;
    CHECK(event.kind == MUSTER_EVENT_RANK_FAILED && event.rank == number && event.code == SIGSEGV);
    snprintf(begin, sizeof begin, "rank %u on here FAILED: killed by signal 11 (%s)", (unsigned)number,
             muster_cause_name(event.cause));
    CHECK(muster_event_describe(context, &event, text, sizeof text) > 0 && strstr(text, begin) == text);
    if (lasts == 'y') {
        CHECK(event.cause == MUSTER_CAUSE_CORE_DUMP);
        CHECK(strcmp(muster_cause_name(event.cause), "core dump") == 0);
        /* The dump is still in progress. */
        CHECK(waitpid(rank->pid, NULL, WNOHANG) == 0);
    }
    kill(rank->pid, SIGKILL);
    CHECK(waitpid(rank->pid, NULL, 0) == rank->pid);
}

int main(void)
{
    struct rank with = start(1, 1), without = start(2, 0);
    muster_ctx_t *context = attach(0);
    if (!context)
        return 1;
    CHECK(muster_wait_ranks(context, 3, MUSTER_STATE(MUSTER_RANK_ALIVE), DEADLINE_MS) == 3);
    check_death(context, &with);
    check_death(context, &without);
    CHECK(muster_rank_state(context, 0) == MUSTER_RANK_ALIVE);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
