/* A rank that dies of a segmentation fault, with a core dump that lasts and without one, and what another one is told
 * of it. Exit code 0 if all checks held. */
#include "check.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_MS 60000
/* Hardly any of it is there, so next to nothing is written; but the kernel looks at all of it, page by page. */
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

/* Core dumps of this process are files, and there may be any; else nobody knows how long one lasts. */
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
    int go, says;
};

static int make_last(void)
{
    char *large = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (large == MAP_FAILED)
        return 0;
    *large = 1;
    return 1;
}

/* A rank that dies when it is told, and says before whether its dump will last. Started before this one attaches: a
 * child of an attached process is none of its own. */
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
    CHECK(write(rank->go, "x", 1) == 1 && read(rank->says, &lasts, 1) == 1);
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
        /* It is at it still. */
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
