/* Shared by the C test programs: a check that prints its condition, and all calls on one context. */
#ifndef CHECK_H
#define CHECK_H

#include <muster.h>
#include <stdio.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            printf("%s:%d: %s does not hold; last message: %s\n", __FILE__, __LINE__,           \
                   #condition, muster_last_error_message());                                    \
            failures++;                                                                         \
        }                                                                                       \
    } while (0)

static void ignore(muster_ctx_t *context, const muster_event_t *event, void *argument)
{
    (void)context;
    (void)event;
    (void)argument;
}

/* Every call with an unusable context returns the expected code and writes nothing. */
static void check_context(muster_ctx_t *context, int expected)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    uint64_t epoch = 7;
    char text[8] = "keep";
    char record[MUSTER_BOOTSTRAP_RECORD_SIZE] = "", piggyback[MUSTER_PIGGYBACK_MAX] = "";
    CHECK(muster_get_fd(context) == expected);
    CHECK(muster_next_event(context, &event) == expected);
    CHECK(muster_poll_events(context, &event, 1, 1000) == expected);
    CHECK(muster_dispatch(context, ignore, NULL) == expected);
    CHECK(muster_set_callback(context, ignore, NULL, MUSTER_CALLBACK_THREAD_SAFE) == expected);
    CHECK(muster_set_callback(context, NULL, NULL, 0) == expected);
    CHECK(muster_node_state(context, 0) == expected);
    CHECK(muster_rank_state(context, 0) == expected);
    CHECK(muster_rank_node(context, 0) == expected);
    CHECK(muster_node_name(context, 0, text, sizeof text) == expected);
    CHECK(muster_node_group(context, 0, text, sizeof text) == expected);
    CHECK(muster_event_nodes(context, &event, NULL, 0) == expected);
    CHECK(muster_node_count(context) == expected);
    CHECK(muster_rank_count(context) == expected);
    CHECK(muster_nodes_in_state(context, MUSTER_NODE_ALIVE) == expected);
    CHECK(muster_ranks_in_state(context, MUSTER_RANK_ALIVE) == expected);
    CHECK(muster_my_rank(context) == expected);
    CHECK(muster_my_node(context) == expected);
    CHECK(muster_epoch(context, &epoch) == expected);
    CHECK(muster_event_describe(context, &event, text, sizeof text) == expected);
    CHECK(muster_publish(context, "k", "v", 1) == expected);
    CHECK(muster_withdraw(context, "k") == expected);
    CHECK(muster_attribute_get(context, 0, "k", text, sizeof text) == expected);
    CHECK(muster_watch(context, "k") == expected);
    CHECK(muster_unwatch(context, "k") == expected);
    CHECK(muster_attribute_keys(context, 0, text, sizeof text) == expected);
    CHECK(muster_control(context, "rails", text, sizeof text) == expected);
    CHECK(muster_why(context, 0, text, sizeof text) == expected);
    CHECK(muster_node_states(context, (uint8_t *)text, sizeof text, &epoch) == expected);
    CHECK(muster_rank_states(context, (uint8_t *)text, sizeof text, &epoch) == expected);
    CHECK(muster_node_find(context, "here") == expected);
    CHECK(muster_node_ranks(context, 0, NULL, 0) == expected);
    CHECK(muster_zone_count(context) == expected);
    CHECK(muster_node_zone(context, 0) == expected);
    CHECK(muster_rank_zone(context, 0) == expected);
    CHECK(muster_zone_name(context, 0, text, sizeof text) == expected);
    CHECK(muster_zone_nodes(context, 0, NULL, 0) == expected);
    CHECK(muster_zone_nodes_in_state(context, 0, MUSTER_NODE_ALIVE) == expected);
    CHECK(muster_wait_node(context, 0, MUSTER_STATE(MUSTER_NODE_ALIVE), 1000) == expected);
    CHECK(muster_wait_rank(context, 0, MUSTER_STATE(MUSTER_RANK_ALIVE), 1000) == expected);
    CHECK(muster_wait_ranks(context, 0, MUSTER_STATE(MUSTER_RANK_ALIVE), 1000) == expected);
    CHECK(muster_tick_every(context, 20) == expected);
    CHECK(muster_tick(context) == expected);
    CHECK(muster_heard_from(context, 0) == expected);
    CHECK(muster_sent_to(context, 0) == expected);
    CHECK(muster_piggyback_fill(context, 0, piggyback, sizeof piggyback) == expected);
    CHECK(muster_piggyback_deliver(context, 0, piggyback, sizeof piggyback) == expected);
    CHECK(muster_counter(context, "agents_found_again", &epoch) == expected);
    CHECK(muster_bootstrap_record(context, record, 1000) == expected);
    CHECK(muster_take_bootstrap_records(context, record, 1) == expected);
    CHECK(muster_leave(context, 0) == expected);
    CHECK(muster_finalize(context) == expected);
    CHECK(strcmp(text, "keep") == 0 && epoch == 7);
}

#endif
