/* Threads that connect, ask and disconnect as they please: whoever holds a count is connected, the
 * others are told, and nothing crashes or hangs. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { ASKERS = 3, HOLDERS = 3, TURNS = 8 };

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
    int status = muster_init(&config, &context);
    /* While another thread's last finalize is still under way the agent may say "not yet". */
    if (status < 0 && status != MUSTER_ERR_AGENT_REFUSED) {
        printf("init: %s: %s\n", muster_error_name(status), muster_last_error_message());
        wrong++;
    }
    return status < 0 ? NULL : context;
}

/* Asks all the time, whether there is a connection or not. */
static void *ask(void *unused)
{
    (void)unused;
    while (!done) {
        muster_event_t event = MUSTER_EVENT_INIT;
        char text[64];
        int answers[] = {muster_rank_state(the_context, 0), muster_node_count(the_context),
                         muster_next_event(the_context, &event),
                         muster_node_name(the_context, 0, text, sizeof text)};
        for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
            if (answers[i] < 0 && answers[i] != MUSTER_ERR_NOT_INITIALIZED &&
                answers[i] != MUSTER_ERR_NO_SUCH_RANK && answers[i] != MUSTER_ERR_NO_SUCH_NODE &&
                answers[i] != MUSTER_ERR_AGENT_LOST) {
                printf("answer %zu: %s\n", i, muster_error_name(answers[i]));
                wrong++;
            }
    }
    return NULL;
}

/* Connects, is connected as long as it has not given its count back, and gives it back. */
static void *hold(void *unused)
{
    (void)unused;
    for (int turn = 0; turn < TURNS; turn++) {
        muster_ctx_t *context = attach();
        if (!context)
            continue;
        int counted = muster_node_count(context);
        if (counted < 0) {
            printf("connected, but: %s\n", muster_error_name(counted));
            wrong++;
        }
        int left = muster_finalize(context);
        if (left < 0) {
            printf("counted, but: %s\n", muster_error_name(left));
            wrong++;
        }
    }
    return NULL;
}

int main(void)
{
    pthread_t askers[ASKERS], holders[HOLDERS];
    the_context = attach();
    CHECK(the_context != NULL);
    for (int i = 0; i < ASKERS; i++)
        CHECK(pthread_create(&askers[i], NULL, ask, NULL) == 0);
    CHECK(muster_finalize(the_context) == MUSTER_OK);
    for (int i = 0; i < HOLDERS; i++)
        CHECK(pthread_create(&holders[i], NULL, hold, NULL) == 0);
    for (int i = 0; i < HOLDERS; i++)
        CHECK(pthread_join(holders[i], NULL) == 0);
    done = 1;
    for (int i = 0; i < ASKERS; i++)
        CHECK(pthread_join(askers[i], NULL) == 0);
    CHECK(wrong == 0);
    check_context(the_context, MUSTER_ERR_NOT_INITIALIZED);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
