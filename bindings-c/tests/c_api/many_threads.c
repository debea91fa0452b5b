/* Threads that connect, make calls and disconnect concurrently: a thread that has a reference is connected, other
 * threads get an error, and nothing crashes or blocks. First, all threads make every call. */
#include "every_call.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { CALLING = 3, HOLDERS = 3, CALLERS = 4, TURNS = 8, DEADLINE_MS = 60000 };

static atomic_int done;
static atomic_int wrong;
static muster_ctx_t *the_context;

static muster_ctx_t *attach(void)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "many_threads.c";
    config.node = "here";
    config.rank = 0;
    config.ranks = 1;
    config.timeout_ms = DEADLINE_MS;
    int status = muster_init(&config, &context);
    /* Waits while another thread's last finalize is in progress. */
    if (status < 0) {
        printf("init: %s: %s\n", muster_error_name(status), muster_last_error_message());
        wrong++;
    }
    return status < 0 ? NULL : context;
}

/* The possible results, whatever other threads do. */
static int is_allowed(int answer)
{
    switch (answer) {
    case MUSTER_ERR_BUSY:        /* a callback gets the events */
    case MUSTER_ERR_REFUSED:     /* the agent has too many requests at once */
    case MUSTER_ERR_NO_SUCH_KEY: /* a new agent has no attributes */
    case MUSTER_ERR_TIMEOUT:
    case MUSTER_ERR_NO_SUCH_NODE:
    case MUSTER_ERR_NO_SUCH_RANK:
    case MUSTER_ERR_NOT_INITIALIZED:
    case MUSTER_ERR_AGENT_LOST:
        return 1;
    default:
        return answer >= 0;
    }
}

static void check_result(const char *call, int answer)
{
    if (!is_allowed(answer)) {
        printf("%s: %s: %s\n", call, muster_error_name(answer), muster_last_error_message());
        wrong++;
    }
}

/* While a thread has a reference. A slow agent is accepted, and a state may just have changed. */
static void check_held_result(const char *call, int answer)
{
    check_result(call, answer == MUSTER_ERR_NOT_INITIALIZED || answer == MUSTER_ERR_AGENT_LOST ? MUSTER_ERR_INTERNAL
                                                                                        : answer);
}

/* Makes calls in a loop, connected or not. */
static void *call_in_a_loop(void *unused)
{
    (void)unused;
    while (!done) {
        make_all_calls(the_context, check_result);
        check_result("muster_dispatch", muster_dispatch(the_context, ignore, NULL));
        check_result("muster_wait_rank", muster_wait_rank(the_context, 7, MUSTER_STATE(MUSTER_RANK_ALIVE), 5));
    }
    return NULL;
}

/* Makes every call, those that connect and leave included, while main has its own reference. */
static void *call_everything(void *unused)
{
    (void)unused;
    for (int turn = 0; turn < TURNS; turn++) {
        muster_ctx_t *context = attach();
        if (!context) {
            wrong++;
            continue;
        }
        make_all_calls(context, check_held_result);
        check_held_result("muster_dispatch", muster_dispatch(context, ignore, NULL));
        check_held_result("muster_set_callback",
                   muster_set_callback(context, ignore, NULL, MUSTER_CALLBACK_THREAD_SAFE));
        check_held_result("muster_set_callback of NULL", muster_set_callback(context, NULL, NULL, 0));
        int left = turn % 2 ? muster_finalize(context) : muster_leave(context, 0);
        if (left < 0) {
            printf("has a reference, but: %s\n", muster_error_name(left));
            wrong++;
        }
    }
    return NULL;
}

/* Connects, must be connected while it has the reference, and releases it. */
static void *hold(void *unused)
{
    (void)unused;
    for (int turn = 0; turn < TURNS; turn++) {
        muster_ctx_t *context = attach();
        if (!context)
            break;
        int counted = muster_node_count(context);
        if (counted < 0) {
            printf("connected, but: %s\n", muster_error_name(counted));
            wrong++;
        }
        int left = muster_finalize(context);
        if (left < 0) {
            printf("has a reference, but: %s\n", muster_error_name(left));
            wrong++;
        }
    }
    return NULL;
}

/* Cancelled before the first call: all calls are made all the same, and the thread ends after the last one. */
static void *call_cancelled(void *has_called)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    CHECK(pthread_cancel(pthread_self()) == 0);
    muster_ctx_t *context = attach();
    make_all_calls(context, check_held_result);
    check_held_result("muster_poll_events", muster_poll_events(context, &event, 1, 20));
    check_held_result("muster_wait_rank", muster_wait_rank(context, 7, MUSTER_STATE(MUSTER_RANK_ALIVE), 20));
    check_held_result("muster_dispatch", muster_dispatch(context, ignore, NULL));
    check_held_result("muster_set_callback",
               muster_set_callback(context, ignore, NULL, MUSTER_CALLBACK_THREAD_SAFE));
    check_held_result("muster_set_callback of NULL", muster_set_callback(context, NULL, NULL, 0));
    check_held_result("muster_finalize", muster_finalize(context));
    *(int *)has_called = 1;
    pthread_testcancel();
    return NULL;
}

/* Cancelled while it waits: the thread ends, and the process continues to work. */
static void *wait_cancelled(void *is_there)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    atomic_store((atomic_int *)is_there, 1);
    for (;;) {
        muster_poll_events(the_context, &event, 1, 20);
        pthread_testcancel();
    }
    return NULL;
}

static void check_cancelled(void)
{
    static atomic_int is_there;
    pthread_t thread;
    void *ended = NULL;
    int has_called = 0;
    CHECK(pthread_create(&thread, NULL, call_cancelled, &has_called) == 0);
    CHECK(pthread_join(thread, &ended) == 0);
    CHECK(has_called && ended == PTHREAD_CANCELED);
    CHECK(pthread_create(&thread, NULL, wait_cancelled, &is_there) == 0);
    while (!atomic_load(&is_there))
        sched_yield();
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED);
    CHECK(muster_rank_state(the_context, 0) == MUSTER_RANK_ALIVE);
}

static void check_held(void)
{
    pthread_t callers[CALLERS];
    CHECK(muster_wait_rank(the_context, 0, MUSTER_STATE(MUSTER_RANK_ALIVE), DEADLINE_MS) ==
          MUSTER_RANK_ALIVE);
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_create(&callers[i], NULL, call_everything, NULL) == 0);
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_join(callers[i], NULL) == 0);
    CHECK(muster_rank_state(the_context, 0) == MUSTER_RANK_ALIVE);
}

int main(void)
{
    pthread_t calling[CALLING], holders[HOLDERS];
    the_context = attach();
    CHECK(the_context != NULL);
    check_held();
    check_cancelled();
    for (int i = 0; i < CALLING; i++)
        CHECK(pthread_create(&calling[i], NULL, call_in_a_loop, NULL) == 0);
    CHECK(muster_finalize(the_context) == MUSTER_OK);
    for (int i = 0; i < HOLDERS; i++)
        CHECK(pthread_create(&holders[i], NULL, hold, NULL) == 0);
    for (int i = 0; i < HOLDERS; i++)
        CHECK(pthread_join(holders[i], NULL) == 0);
    done = 1;
    for (int i = 0; i < CALLING; i++)
        CHECK(pthread_join(calling[i], NULL) == 0);
    CHECK(wrong == 0);
    check_context(the_context, MUSTER_ERR_NOT_INITIALIZED);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
