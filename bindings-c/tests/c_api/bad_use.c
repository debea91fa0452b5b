/* A C program with a real agent that uses the API wrongly: every pointer NULL, invalid contexts, every call inside a
 * callback, a process that is stopped while more events occur than the event ring holds, one that overwrites the
 * memory that it shares with the agent, and one without Muster. Exit code 0 if all checks pass. The other processes
 * run this program again, with an argument that selects what they do. */
#include "every_call.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_MS 60000
#define ALIVE MUSTER_STATE(MUSTER_RANK_ALIVE)

enum { SELF, SLEEPER, SCRIBBLER, FOREIGN, RANKS };

static const char *program;

static muster_ctx_t *attach(int rank)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "bad_use.c";
    config.node = "here";
    config.rank = rank;
    config.ranks = RANKS;
    int status = muster_init(&config, &context);
    if (status < 0)
        printf("rank %d: %s: %s\n", rank, muster_strerror(status), muster_last_error_message());
    return context;
}

static pid_t start(const char *word)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, word, (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0);
    return child;
}

static int end_of(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* ------------------------------------------------------------------------------- NULL and sizes */

static void check_nulls(muster_ctx_t *context)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char text[MUSTER_BOOTSTRAP_RECORD_SIZE] = "";
    uint64_t epoch = 0;
    CHECK(muster_next_event(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_poll_events(context, NULL, 1, 0) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_poll_events(context, &event, 0, 0) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_dispatch(context, NULL, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_event_describe(context, NULL, text, sizeof text) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_event_describe(context, &event, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_event_nodes(context, NULL, NULL, 0) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_event_nodes(context, &event, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_epoch(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_name(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_group(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_states(context, NULL, 1, &epoch) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_rank_states(context, NULL, 1, &epoch) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_find(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_node_ranks(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_zone_name(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_zone_nodes(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_zone_nodes_in_state(context, 0, 6) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_zone_nodes_in_state(context, 0, -1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_why(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_control(context, NULL, text, sizeof text) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_control(context, "rails", NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_publish(context, NULL, text, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_publish(context, "k", NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_withdraw(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_attribute_get(context, 0, NULL, text, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_attribute_get(context, 0, "k", NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_attribute_keys(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_watch(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_unwatch(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_bootstrap_record(context, NULL, 1000) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_take_bootstrap_records(context, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_piggyback_fill(context, 0, NULL, MUSTER_PIGGYBACK_MAX) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_piggyback_fill(context, 0, text, MUSTER_PIGGYBACK_MAX - 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_piggyback_deliver(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_piggyback_deliver(context, 0, text, MUSTER_PIGGYBACK_MAX + 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_piggyback_deliver(context, 0, NULL, 0) == MUSTER_OK);
    CHECK(muster_piggyback_fill(context, UINT32_MAX, text, sizeof text) == MUSTER_ERR_NO_SUCH_RANK);
    CHECK(muster_piggyback_deliver(context, UINT32_MAX, text, 1) == MUSTER_ERR_NO_SUCH_RANK);
    CHECK(muster_counter(context, NULL, &epoch) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_counter(context, "agents_found_again", NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_counter(context, "no such counter", &epoch) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_heard_from(context, UINT32_MAX) == MUSTER_ERR_NO_SUCH_RANK);
    CHECK(muster_sent_to(context, UINT32_MAX) == MUSTER_ERR_NO_SUCH_RANK);
    CHECK(muster_init(NULL, NULL) == MUSTER_ERR_ARGUMENT);
    event.struct_size = sizeof event - 1;
    CHECK(muster_next_event(context, &event) == MUSTER_ERR_STRUCT_SIZE);
    CHECK(muster_event_describe(context, &event, text, sizeof text) == MUSTER_ERR_STRUCT_SIZE);
    CHECK(muster_event_nodes(context, &event, NULL, 0) == MUSTER_ERR_STRUCT_SIZE);
    CHECK(muster_poll_events(context, &event, 1, 0) == MUSTER_ERR_STRUCT_SIZE);
}

/* An event with numbers that the library never writes: it is described as far as possible; no number is used as an
 * index unchecked. */
static void check_wild_event(muster_ctx_t *context)
{
    muster_event_t event;
    char text[512];
    for (int byte = 0; byte < 256; byte += 51) {
        memset(&event, byte, sizeof event);
        event.struct_size = sizeof event;
        CHECK(muster_event_describe(context, &event, text, sizeof text) > 0);
        CHECK(muster_event_nodes(context, &event, NULL, 0) >= 0);
    }
}

/* ---------------------------------------------------------------------------- inside a callback */

static atomic_int called;
static int is_on_thread;
static int ends[2]; /* a pipe: a byte means that the callback has ended */

/* Each call inside a callback succeeds, except that only a callback on a thread may take events while it is set. An
 * agent that answers late, on a busy machine, is accepted. */
static void check_result(const char *call, int answer)
{
    int is_taken = is_on_thread && answer == MUSTER_ERR_BUSY &&
                   (strstr(call, "muster_next_event") || strstr(call, "muster_poll_events"));
    int is_late = answer == MUSTER_ERR_TIMEOUT || answer == MUSTER_ERR_REFUSED || answer == MUSTER_ERR_NO_SUCH_KEY;
    if (answer < 0 && !is_taken && !is_late) {
        printf("inside a callback: %s: %s: %s\n", call, muster_error_name(answer), muster_last_error_message());
        failures++;
    }
}

static void call_all(muster_ctx_t *context, const muster_event_t *event, void *argument)
{
    muster_ctx_t *other = context;
    char text[512];
    (void)argument;
    if (called++ > 0)
        return;
    CHECK(muster_init(NULL, &other) == MUSTER_ERR_BUSY && other == NULL);
    CHECK(muster_finalize(context) == MUSTER_ERR_BUSY);
    CHECK(muster_leave(context, 0) == MUSTER_ERR_BUSY);
    CHECK(muster_dispatch(context, call_all, NULL) == MUSTER_ERR_BUSY);
    CHECK(muster_set_callback(context, call_all, NULL, MUSTER_CALLBACK_THREAD_SAFE) == MUSTER_ERR_BUSY);
    CHECK(muster_set_callback(context, NULL, NULL, 0) == MUSTER_ERR_BUSY);
    CHECK(muster_event_describe(context, event, text, sizeof text) > 0);
    make_all_calls(context, check_result);
    CHECK(write(ends[1], "", 1) == 1);
}

static void await_called(void)
{
    struct pollfd end = {ends[0], POLLIN, 0};
    char byte;
    CHECK(poll(&end, 1, DEADLINE_MS) == 1 && read(ends[0], &byte, 1) == 1);
}

/* Inside a callback on the dispatching thread, and on a thread of the library. */
static void check_inside(muster_ctx_t *context)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    CHECK(pipe(ends) == 0);
    CHECK(muster_wait_rank(context, SELF, ALIVE, DEADLINE_MS) == MUSTER_RANK_ALIVE);
    CHECK(muster_watch(context, "inside") == MUSTER_OK);
    CHECK(muster_publish(context, "inside", "1", 1) == MUSTER_OK);
    while (called == 0 && !failures) {
        struct pollfd news = {muster_get_fd(context), POLLIN, 0};
        CHECK(poll(&news, 1, DEADLINE_MS) == 1);
        CHECK(muster_dispatch(context, call_all, NULL) >= 0);
    }
    await_called();
    while (muster_next_event(context, &event) > 0)
        ;
    called = 0;
    is_on_thread = 1;
    CHECK(muster_set_callback(context, call_all, NULL, MUSTER_CALLBACK_THREAD_SAFE) == MUSTER_OK);
    CHECK(muster_publish(context, "inside", "2", 1) == MUSTER_OK);
    await_called();
    CHECK(muster_set_callback(context, NULL, NULL, 0) == MUSTER_OK);
    CHECK(muster_unwatch(context, "inside") >= 0);
    CHECK(called > 0);
}

/* ------------------------------------------------------------------- stopped, with a full ring */

/* Stops itself once it is attached, and checks what it has missed when it continues. */
static void sleep_through(void)
{
    muster_ctx_t *context = attach(SLEEPER);
    muster_event_t event = MUSTER_EVENT_INIT;
    uint64_t lost = 0;
    int overflows = 0, after = 0;
    CHECK(context != NULL && muster_watch(context, "noise") == MUSTER_OK);
    while (muster_next_event(context, &event) > 0)
        ;
    raise(SIGSTOP);
    while (muster_next_event(context, &event) > 0) {
        overflows += event.kind == MUSTER_EVENT_OVERFLOW;
        lost += event.kind == MUSTER_EVENT_OVERFLOW ? event.lost : 0;
        after += event.kind == MUSTER_EVENT_ATTRIBUTE;
    }
    CHECK(overflows == 1 && lost > 0 && after > 0);
    CHECK(muster_rank_state(context, SELF) == MUSTER_RANK_ALIVE);
    CHECK(muster_finalize(context) == MUSTER_OK);
}

static void check_stopped(muster_ctx_t *context)
{
    int status = 0;
    pid_t sleeper = start("sleep");
    /* It stops itself: it may be hung before it is seen alive. */
    int seen = muster_wait_rank(context, SLEEPER, ALIVE | MUSTER_STATE(MUSTER_RANK_HUNG), DEADLINE_MS);
    CHECK(seen == MUSTER_RANK_ALIVE || seen == MUSTER_RANK_HUNG);
    CHECK(waitpid(sleeper, &status, WUNTRACED) == sleeper && WIFSTOPPED(status));
    for (int i = 0; i < 6000; i++)
        CHECK(muster_publish(context, "noise", &i, sizeof i) == MUSTER_OK);
    CHECK(muster_wait_rank(context, SLEEPER, MUSTER_STATE(MUSTER_RANK_HUNG), DEADLINE_MS) ==
          MUSTER_RANK_HUNG);
    CHECK(kill(sleeper, SIGCONT) == 0);
    CHECK(end_of(sleeper) == 0);
    CHECK(muster_wait_rank(context, SLEEPER, MUSTER_STATE(MUSTER_RANK_LEFT), DEADLINE_MS) ==
          MUSTER_RANK_LEFT);
}

/* ------------------------------------------------------------------------ overwriting, truncating */

/* One half of this process's state table (the agent's or the clients'), and its inode, from /proc/self/maps; NULL if
 * there is none. */
static char *table(const char *name, size_t *size, unsigned long *inode)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long first = 0, end = 0;
    char line[512];
    CHECK(maps != NULL);
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, name) &&
            sscanf(line, "%lx-%lx %*s %*s %*s %lu", &first, &end, inode) == 3)
            break;
    if (maps)
        fclose(maps);
    *size = end - first;
    return (char *)first; /* NOLINT: an address that the kernel wrote down */
}

/* The state table among the descriptors of a process, opened for writing; -1 if it has none. */
static int open_among(const char *process, unsigned long inode)
{
    char folder[512], path[1024];
    struct stat is;
    struct dirent *entry;
    int file = -1;
    snprintf(folder, sizeof folder, "/proc/%s/fd", process);
    DIR *all = opendir(folder);
    while (all && file < 0 && (entry = readdir(all))) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &is) == 0 && is.st_ino == inode && S_ISREG(is.st_mode)) {
            ssize_t length = readlink(path, folder, sizeof folder - 1);
            folder[length < 0 ? 0 : length] = 0;
            if (strncmp(folder, "/memfd:muster-table", 19) == 0)
                file = open(path, O_RDWR | O_CLOEXEC);
            snprintf(folder, sizeof folder, "/proc/%s/fd", process);
        }
    }
    if (all)
        closedir(all);
    return file;
}

/* A client has the state table only mapped. Its user finds the file in the agent's descriptors, and can open it. */
static int open_table(unsigned long inode)
{
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    int file = -1;
    CHECK(processes != NULL);
    while (processes && file < 0 && (entry = readdir(processes)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            file = open_among(entry->d_name, inode);
    if (processes)
        closedir(processes);
    return file;
}

/* A process that opens the state table cannot truncate or extend it, so no process gets a SIGBUS. */
static void check_sealed(unsigned long inode, size_t size)
{
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct stat is;
    int file = open_table(inode);
    CHECK(file >= 0);
    CHECK((fcntl(file, F_GET_SEALS) & wanted) == wanted);
    errno = 0;
    CHECK(ftruncate(file, 0) < 0 && errno == EPERM);
    errno = 0;
    CHECK(ftruncate(file, (off_t)size * 2) < 0 && errno == EPERM);
    errno = 0;
    CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM);
    CHECK(fstat(file, &is) == 0 && (size_t)is.st_size == size);
    if (file >= 0)
        close(file);
}

/* Overwrites all shared memory that it can write, repeatedly, makes calls in between, and is killed. */
static void scribble(void)
{
    char text[64];
    size_t size = 0;
    unsigned long inode = 0;
    muster_ctx_t *context = attach(SCRIBBLER);
    char *start = table("memfd:muster-table ", &size, &inode);
    CHECK(context != NULL && start != NULL && size > 0);
    if (context && start) {
        check_sealed(inode, size);
        /* The agent's half cannot be made writable. */
        CHECK(mprotect(start, size, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
    }
    start = table("memfd:muster-table-clients", &size, &inode);
    CHECK(start != NULL && size > 0);
    if (context && start)
        check_sealed(inode, size);
    if (failures)
        exit(1);
    unsigned seed = 20261122;
    printf("bad_use.c: overwriting with seed %u\n", seed);
    fflush(stdout);
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < size; at++)
            start[at] = (char)(seed = seed * 1664525u + 1013904223u, seed >> 24);
        muster_event_t event = MUSTER_EVENT_INIT;
        for (uint32_t i = 0; i < 50; i++) {
            (void)muster_next_event(context, &event);
            (void)muster_event_describe(context, &event, text, sizeof text);
            (void)muster_node_name(context, i, text, sizeof text);
            (void)muster_rank_state(context, i);
            (void)muster_rank_node(context, i);
            (void)muster_rank_zone(context, i);
            (void)muster_zone_name(context, i, text, sizeof text);
        }
        (void)muster_node_ranks(context, 0, (uint32_t *)text, 2);
    }
    raise(SIGKILL);
}

/* With any content of the state table, no call of another process crashes or blocks, and the agent still runs. */
static void check_scribbled(muster_ctx_t *context)
{
    uint8_t states[64];
    char text[4096];
    uint64_t epoch;
    muster_event_t event = MUSTER_EVENT_INIT;
    pid_t scribbler = start("scribble");
    int status = end_of(scribbler);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (uint32_t i = 0; i < 2000; i++) {
        (void)muster_node_state(context, i);
        (void)muster_rank_state(context, i);
        (void)muster_rank_node(context, i);
        (void)muster_node_name(context, i, text, sizeof text);
        (void)muster_rank_states(context, states, sizeof states, &epoch);
        (void)muster_node_states(context, states, sizeof states, &epoch);
        if (muster_next_event(context, &event) > 0)
            (void)muster_event_describe(context, &event, text, sizeof text);
    }
    CHECK(muster_wait_rank(context, SELF, 31, 0) != MUSTER_ERR_INTERNAL);
    (void)muster_node_ranks(context, 0, (uint32_t *)states, 16);
    (void)muster_node_count(context);
    (void)muster_rank_count(context);
    (void)muster_epoch(context, &epoch);
    CHECK(muster_control(context, "members", text, sizeof text) > 0);
}

/* ----------------------------------------------------------------------------------------- all */

static void check_handles(muster_ctx_t *context)
{
    check_context(NULL, MUSTER_ERR_ARGUMENT);
    check_context((muster_ctx_t *)((char *)context + 1), MUSTER_ERR_ARGUMENT);
    check_context((muster_ctx_t *)&failures, MUSTER_ERR_ARGUMENT);
}

int main(int count, char **arguments)
{
    program = arguments[0];
    if (count > 1) {
        if (strcmp(arguments[1], "sleep") == 0)
            sleep_through();
        else if (strcmp(arguments[1], "scribble") == 0)
            scribble();
        return failures != 0;
    }
    muster_ctx_t *context = attach(SELF);
    if (!context)
        return 1;
    check_handles(context);
    check_nulls(context);
    check_wild_event(context);
    check_inside(context);
    /* A rank without Muster starts and ends: nothing is reported. */
    CHECK(end_of(start("foreign")) == 0);
    CHECK(muster_rank_state(context, FOREIGN) == MUSTER_RANK_UNKNOWN);
    CHECK(muster_rank_node(context, FOREIGN) == MUSTER_ERR_NO_SUCH_NODE);
    CHECK(muster_rank_zone(context, FOREIGN) == MUSTER_ERR_NO_SUCH_NODE);
    check_stopped(context);
    check_scribbled(context);
    /* The state table, now overwritten, has whether this process left in order. Only the return is checked. */
    (void)muster_finalize(context);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
