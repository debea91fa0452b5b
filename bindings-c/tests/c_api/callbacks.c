/* A C program that takes several events at once, and is called back on a thread of the library. Exit code 0 if all
 * checks pass. It makes events by writing an attribute that it watches. */
#include "check.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_MS 30000

static muster_ctx_t *attach(uint32_t flags)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "callbacks.c";
    config.node = "here";
    config.rank = 0;
    config.ranks = 1;
    config.flags = flags;
    int status = muster_init(&config, &context);
    if (status < 0)
        printf("%s: %s\n", muster_strerror(status), muster_last_error_message());
    return context;
}

/* The event struct of a later release: more members than the library knows. */
typedef struct {
    muster_event_t known;
    uint64_t more;
} later_event_t;

/* Takes events until one of this key comes; returns how many of them were of attributes. */
static int take_until(muster_ctx_t *context, const char *key)
{
    later_event_t events[3];
    int changes = 0;
    for (;;) {
        memset(events, 0x5a, sizeof events);
        events[0].known.struct_size = sizeof *events;
        int taken = muster_poll_events(context, &events[0].known, 3, DEADLINE_MS);
        CHECK(taken > 0 && taken <= 3);
        if (taken <= 0)
            return -1;
        for (int i = 0; i < taken; i++) {
            CHECK(events[i].known.struct_size == sizeof *events);
            CHECK(events[i].more == 0x5a5a5a5a5a5a5a5a);
            changes += events[i].known.kind == MUSTER_EVENT_ATTRIBUTE;
            if (events[i].known.key_hash == muster_key_hash(key))
                return changes;
        }
        for (int i = taken; i < 3; i++)
            CHECK(events[i].known.kind == 0x5a5a5a5a);
    }
}

static void check_poll(muster_ctx_t *context)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    CHECK(muster_watch(context, "a") == MUSTER_OK && muster_watch(context, "z") == MUSTER_OK);
    CHECK(muster_publish(context, "z", "0", 1) == MUSTER_OK);
    CHECK(take_until(context, "z") >= 1);
    while (muster_poll_events(context, &event, 1, 0) > 0)
        ;
    CHECK(muster_poll_events(context, &event, 1, 20) == 0);
    for (int i = 0; i < 5; i++)
        CHECK(muster_publish(context, "a", &i, sizeof i) == MUSTER_OK);
    CHECK(muster_publish(context, "z", "1", 1) == MUSTER_OK);
    /* Changes of one key in quick succession may be one event, but the last one is always reported. */
    CHECK(take_until(context, "z") >= 2);
}

static struct {
    pthread_t main;
    sem_t called, go_on;
    atomic_int count, inside, hold;
} record;

static void on_event(muster_ctx_t *context, const muster_event_t *event, void *argument)
{
    muster_event_t other = MUSTER_EVENT_INIT;
    char text[256];
    sigset_t blocked;
    CHECK(argument == &record);
    CHECK(atomic_fetch_add(&record.inside, 1) == 0);
    CHECK(!pthread_equal(pthread_self(), record.main));
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 && sigismember(&blocked, SIGUSR1));
    CHECK(event->struct_size == sizeof *event && event->kind > 0);
    CHECK(muster_event_describe(context, event, text, sizeof text) > 0);
    CHECK(muster_rank_count(context) == 1);
    CHECK(muster_next_event(context, &other) == MUSTER_ERR_BUSY);
    CHECK(muster_dispatch(context, ignore, NULL) == MUSTER_ERR_BUSY);
    CHECK(muster_set_callback(context, NULL, NULL, 0) == MUSTER_ERR_BUSY);
    CHECK(muster_finalize(context) == MUSTER_ERR_BUSY);
    CHECK(muster_leave(context, 0) == MUSTER_ERR_BUSY);
    if (event->kind == MUSTER_EVENT_ATTRIBUTE) {
        /* Only the first call since `hold` was set is held; there may have been others before. */
        int hold = atomic_exchange(&record.hold, 0);
        atomic_fetch_add(&record.count, 1);
        sem_post(&record.called);
        if (hold)
            sem_wait(&record.go_on);
    }
    atomic_fetch_sub(&record.inside, 1);
}

static int await_call(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += DEADLINE_MS / 1000;
    return sem_timedwait(&record.called, &end);
}

/* Waits until the number has this value. */
static int await_number(atomic_int *number, int value)
{
    for (int tries = 0; atomic_load(number) != value; tries++, usleep(1000))
        if (tries > DEADLINE_MS)
            return -1;
    return 0;
}

static int set(muster_ctx_t *context)
{
    return muster_set_callback(context, on_event, &record, MUSTER_CALLBACK_THREAD_SAFE);
}

static void check_refusals(muster_ctx_t *context)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    CHECK(muster_set_callback(context, on_event, &record, 0) == MUSTER_ERR_ARGUMENT);
    CHECK(strstr(muster_last_error_message(), "MUSTER_CALLBACK_THREAD_SAFE") != NULL);
    CHECK(muster_set_callback(context, on_event, &record, 2) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_set_callback(context, NULL, NULL, 9) == MUSTER_OK);
    CHECK(set(context) == MUSTER_OK);
    CHECK(set(context) == MUSTER_ERR_BUSY);
    CHECK(muster_next_event(context, &event) == MUSTER_ERR_BUSY);
    CHECK(muster_poll_events(context, &event, 1, DEADLINE_MS) == MUSTER_ERR_BUSY);
    CHECK(muster_dispatch(context, ignore, NULL) == MUSTER_ERR_BUSY);
    CHECK(strstr(muster_last_error_message(), "muster_set_callback") != NULL);
}

/* In a forked child nothing is called back, and every call fails with FORKED. */
static void check_fork(muster_ctx_t *context)
{
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        check_context(context, MUSTER_ERR_FORKED);
        fflush(stdout);
        _exit(failures != 0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void *remove_callback(void *context)
{
    return muster_set_callback(context, NULL, NULL, 0) == MUSTER_OK ? context : NULL;
}

static atomic_int polling;

static void *poll_until_refused(void *context)
{
    static int answer;
    muster_event_t event = MUSTER_EVENT_INIT;
    atomic_store(&polling, (int)gettid());
    do
        answer = muster_poll_events(context, &event, 1, DEADLINE_MS);
    while (answer > 0);
    return &answer;
}

/* Waits until that thread sleeps, most probably in poll. */
static void await_sleep(void)
{
    char path[64], state = '?';
    while (state != 'S') {
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", atomic_load(&polling));
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%*d %*s %c", &state) != 1)
            state = '?';
        if (file)
            fclose(file);
    }
}

/* A thread that waits for events returns when a callback is set, which then gets all events. */
static void check_takeover(muster_ctx_t *context)
{
    pthread_t poller;
    void *answer = NULL;
    CHECK(pthread_create(&poller, NULL, poll_until_refused, context) == 0);
    await_sleep();
    CHECK(set(context) == MUSTER_OK);
    CHECK(pthread_join(poller, &answer) == 0 && answer && *(int *)answer == MUSTER_ERR_BUSY);
    CHECK(muster_set_callback(context, NULL, NULL, 0) == MUSTER_OK);
}

static void check_callbacks(muster_ctx_t *context)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    pthread_t taker;
    void *taken = NULL;
    check_takeover(context);
    check_refusals(context);
    check_fork(context);
    CHECK(muster_publish(context, "z", "2", 1) == MUSTER_OK);
    CHECK(await_call() == 0);

    /* Removing the callback waits for the running call, which is the last one. */
    atomic_store(&record.hold, 1);
    CHECK(muster_publish(context, "z", "3", 1) == MUSTER_OK);
    CHECK(await_number(&record.hold, 0) == 0);
    CHECK(pthread_create(&taker, NULL, remove_callback, context) == 0);
    CHECK(muster_publish(context, "z", "4", 1) == MUSTER_OK);
    CHECK(atomic_load(&record.inside) == 1);
    sem_post(&record.go_on);
    CHECK(pthread_join(taker, &taken) == 0 && taken == context);
    int count = atomic_load(&record.count);
    CHECK(atomic_load(&record.inside) == 0);
    /* Later events are delivered to other consumers. */
    CHECK(muster_publish(context, "a", "5", 1) == MUSTER_OK);
    CHECK(take_until(context, "a") >= 1 && atomic_load(&record.count) == count);
    while (muster_next_event(context, &event) > 0)
        ;

    /* Set again, and removed by the last finalize. */
    CHECK(set(context) == MUSTER_OK);
    CHECK(muster_publish(context, "z", "6", 1) == MUSTER_OK);
    CHECK(await_call() == 0);
    CHECK(muster_finalize(context) == MUSTER_OK);
    CHECK(atomic_load(&record.inside) == 0);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
}

static atomic_int calling;

static void call_slowly(muster_ctx_t *context, const muster_event_t *event, void *argument)
{
    (void)event, (void)argument;
    atomic_store(&calling, 1);
    for (int i = 0; i < 200; i++) {
        CHECK(muster_rank_count(context) == 1);
        usleep(1000);
    }
}

/* The last finalize waits for the running callback; the connection is valid until it returns. */
static void check_connection_lasts(muster_ctx_t *context)
{
    CHECK(muster_watch(context, "z") == MUSTER_OK);
    CHECK(muster_set_callback(context, call_slowly, NULL, MUSTER_CALLBACK_THREAD_SAFE) == MUSTER_OK);
    CHECK(muster_publish(context, "z", "8", 1) == MUSTER_OK);
    CHECK(await_number(&calling, 1) == 0);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
}

/* The last finalize does not wait forever for a callback that does not return; it fails with TIMEOUT then. */
static void check_endless(muster_ctx_t *context)
{
    atomic_store(&record.hold, 1);
    CHECK(muster_watch(context, "z") == MUSTER_OK && set(context) == MUSTER_OK);
    CHECK(muster_publish(context, "z", "7", 1) == MUSTER_OK);
    CHECK(await_number(&record.hold, 0) == 0);
    CHECK(muster_finalize(context) == MUSTER_ERR_TIMEOUT);
    CHECK(strstr(muster_last_error_message(), "must stay") != NULL);
    CHECK(atomic_load(&record.inside) == 1);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
    sem_post(&record.go_on);
}

#define SIGNALS 65

/* Reads the actions of all signals: the library must not change them. */
static void take_actions(struct sigaction actions[SIGNALS])
{
    memset(actions, 0, SIGNALS * sizeof *actions);
    for (int i = 1; i < SIGNALS; i++)
        sigaction(i, NULL, &actions[i]);
}

static void check_actions(const struct sigaction before[SIGNALS])
{
    struct sigaction now[SIGNALS];
    take_actions(now);
    for (int i = 1; i < SIGNALS; i++) {
        CHECK(before[i].sa_handler == now[i].sa_handler && before[i].sa_flags == now[i].sa_flags);
        for (int other = 1; other < SIGNALS; other++)
            CHECK(sigismember(&before[i].sa_mask, other) == sigismember(&now[i].sa_mask, other));
    }
}

static void own_handler(int number)
{
    (void)number;
}

int main(void)
{
    struct sigaction before[SIGNALS];
    signal(SIGTERM, own_handler);
    signal(SIGCHLD, own_handler);
    take_actions(before);
    record.main = pthread_self();
    CHECK(sem_init(&record.called, 0, 0) == 0 && sem_init(&record.go_on, 0, 0) == 0);
    muster_ctx_t *context = attach(MUSTER_NO_THREAD);
    if (!context)
        return 1;
    check_poll(context);
    CHECK(set(context) == MUSTER_ERR_CONFIG);
    CHECK(muster_finalize(context) == MUSTER_OK);

    context = attach(0);
    if (!context)
        return 1;
    check_actions(before);
    check_poll(context);
    check_callbacks(context);
    check_actions(before);

    /* The next connection has its own callback. */
    context = attach(0);
    if (!context)
        return 1;
    CHECK(muster_set_callback(context, ignore, NULL, MUSTER_CALLBACK_THREAD_SAFE) == MUSTER_OK);
    check_actions(before);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_actions(before);

    context = attach(0);
    if (!context)
        return 1;
    check_connection_lasts(context);

    context = attach(0);
    if (!context)
        return 1;
    check_endless(context);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
