/* Every call that is possible in a callback, and in any number of threads at once. The programs themselves call the
 * other functions, which connect, leave and deliver events. A test checks that the list is complete. */
#ifndef EVERY_CALL_H
#define EVERY_CALL_H

#include "check.h"

/* Is called with each call and its result. */
typedef void (*result_fn)(const char *call, int answer);

#define CALL(call) check_result(#call, (call))
/* For a call that returns a text, or a number that is never 0. */
#define CALL_NON_NULL(call) check_result(#call, (call) ? MUSTER_OK : MUSTER_ERR_INTERNAL)

static void call_without_context(result_fn check_result)
{
    int minor = -1;
    CALL_NON_NULL(muster_strerror(MUSTER_ERR_BUSY));
    CALL_NON_NULL(muster_error_name(MUSTER_ERR_BUSY));
    CALL_NON_NULL(muster_last_error_message());
    CALL_NON_NULL(muster_node_state_name(MUSTER_NODE_ALIVE));
    CALL_NON_NULL(muster_rank_state_name(MUSTER_RANK_ALIVE));
    CALL_NON_NULL(muster_event_name(MUSTER_EVENT_NODE_UP));
    CALL_NON_NULL(muster_cause_name(MUSTER_CAUSE_TOLD));
    CALL_NON_NULL(muster_key_hash("kept"));
    CALL(muster_version(NULL, &minor, NULL));
}

static void call_view(muster_ctx_t *context, result_fn check_result)
{
    uint8_t states[64];
    uint32_t ranks[8];
    uint64_t epoch;
    char text[64];
    CALL(muster_node_state(context, 0));
    CALL(muster_rank_state(context, 0));
    CALL(muster_rank_node(context, 0));
    CALL(muster_node_name(context, 0, text, sizeof text));
    CALL(muster_node_group(context, 0, text, sizeof text));
    CALL(muster_node_count(context));
    CALL(muster_rank_count(context));
    CALL(muster_nodes_in_state(context, MUSTER_NODE_ALIVE));
    CALL(muster_ranks_in_state(context, MUSTER_RANK_ALIVE));
    CALL(muster_my_rank(context));
    CALL(muster_my_node(context));
    CALL(muster_epoch(context, &epoch));
    CALL(muster_node_states(context, states, sizeof states, &epoch));
    CALL(muster_rank_states(context, states, sizeof states, &epoch));
    CALL(muster_node_find(context, "here"));
    CALL(muster_node_ranks(context, 0, ranks, sizeof ranks / sizeof *ranks));
    CALL(muster_zone_count(context));
    CALL(muster_node_zone(context, 0));
    CALL(muster_rank_zone(context, 0));
    CALL(muster_zone_name(context, 0, text, sizeof text));
    CALL(muster_zone_nodes(context, 0, ranks, sizeof ranks / sizeof *ranks));
    CALL(muster_zone_nodes_in_state(context, 0, MUSTER_NODE_ALIVE));
    CALL(muster_wait_node(context, 0, MUSTER_STATE(MUSTER_NODE_ALIVE), 0));
    CALL(muster_wait_rank(context, 0, MUSTER_STATE(MUSTER_RANK_ALIVE), 0));
    CALL(muster_wait_ranks(context, 1, MUSTER_STATE(MUSTER_RANK_ALIVE), 0));
}

static void call_events(muster_ctx_t *context, result_fn check_result)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    uint32_t nodes[8];
    char text[256];
    CALL(muster_get_fd(context));
    CALL(muster_next_event(context, &event));
    CALL(muster_poll_events(context, &event, 1, 0));
    CALL(muster_event_describe(context, &event, text, sizeof text));
    CALL(muster_event_nodes(context, &event, nodes, sizeof nodes / sizeof *nodes));
}

static void call_agent(muster_ctx_t *context, result_fn check_result)
{
    char text[4096], record[MUSTER_BOOTSTRAP_RECORD_SIZE] = "";
    CALL(muster_why(context, 0, text, sizeof text));
    CALL(muster_control(context, "rails", text, sizeof text));
    CALL(muster_publish(context, "kept", "1", 1));
    CALL(muster_attribute_get(context, 0, "kept", text, sizeof text));
    CALL(muster_attribute_keys(context, 0, text, sizeof text));
    CALL(muster_publish(context, "passing", "1", 1));
    CALL(muster_withdraw(context, "passing"));
    CALL(muster_watch(context, "passing"));
    CALL(muster_unwatch(context, "passing"));
    CALL(muster_bootstrap_record(context, record, 10000));
    CALL(muster_take_bootstrap_records(context, record, 1));
}

static void call_progress(muster_ctx_t *context, result_fn check_result)
{
    uint64_t count;
    char piggyback[MUSTER_PIGGYBACK_MAX];
    CALL(muster_tick_every(context, 0));
    CALL(muster_tick(context));
    CALL(muster_heard_from(context, 0));
    CALL(muster_sent_to(context, 0));
    CALL(muster_piggyback_fill(context, 0, piggyback, sizeof piggyback));
    CALL(muster_piggyback_deliver(context, 0, piggyback, 0));
    CALL(muster_counter(context, "agents_found_again", &count));
}

/* Requires the context of rank 0 on the node "here". */
static void make_all_calls(muster_ctx_t *context, result_fn check_result)
{
    call_without_context(check_result);
    call_view(context, check_result);
    call_events(context, check_result);
    call_agent(context, check_result);
    call_progress(context, check_result);
}

#endif
