/* Every call that is possible in a callback, and in any number of threads at once. The programs themselves call the
 * other functions, which connect, leave and deliver events. A test checks that the list is complete. */
#ifndef EVERY_CALL_H
#define EVERY_CALL_H

#include "check.h"

/* Is called with each call and its result. */
typedef void (*judge_fn)(const char *call, int answer);

#define ASK(call) judge(#call, (call))
/* For a call that returns a text, or a number that is never 0. */
#define ASK_WORD(call) judge(#call, (call) ? MUSTER_OK : MUSTER_ERR_INTERNAL)

static void ask_without_context(judge_fn judge)
{
    int minor = -1;
    ASK_WORD(muster_strerror(MUSTER_ERR_BUSY));
    ASK_WORD(muster_error_name(MUSTER_ERR_BUSY));
    ASK_WORD(muster_last_error_message());
    ASK_WORD(muster_node_state_name(MUSTER_NODE_ALIVE));
    ASK_WORD(muster_rank_state_name(MUSTER_RANK_ALIVE));
    ASK_WORD(muster_event_name(MUSTER_EVENT_NODE_UP));
    ASK_WORD(muster_cause_name(MUSTER_CAUSE_TOLD));
    ASK_WORD(muster_key_hash("kept"));
    ASK(muster_version(NULL, &minor, NULL));
}

static void ask_of_view(muster_ctx_t *context, judge_fn judge)
{
    uint8_t states[64];
    uint32_t ranks[8];
    uint64_t epoch;
    char text[64];
    ASK(muster_node_state(context, 0));
    ASK(muster_rank_state(context, 0));
    ASK(muster_rank_node(context, 0));
    ASK(muster_node_name(context, 0, text, sizeof text));
    ASK(muster_node_group(context, 0, text, sizeof text));
    ASK(muster_node_count(context));
    ASK(muster_rank_count(context));
    ASK(muster_nodes_in_state(context, MUSTER_NODE_ALIVE));
    ASK(muster_ranks_in_state(context, MUSTER_RANK_ALIVE));
    ASK(muster_my_rank(context));
    ASK(muster_my_node(context));
    ASK(muster_epoch(context, &epoch));
    ASK(muster_node_states(context, states, sizeof states, &epoch));
    ASK(muster_rank_states(context, states, sizeof states, &epoch));
    ASK(muster_node_find(context, "here"));
    ASK(muster_node_ranks(context, 0, ranks, sizeof ranks / sizeof *ranks));
    ASK(muster_wait_node(context, 0, MUSTER_STATE(MUSTER_NODE_ALIVE), 0));
    ASK(muster_wait_rank(context, 0, MUSTER_STATE(MUSTER_RANK_ALIVE), 0));
    ASK(muster_wait_ranks(context, 1, MUSTER_STATE(MUSTER_RANK_ALIVE), 0));
}

static void ask_of_events(muster_ctx_t *context, judge_fn judge)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    uint32_t nodes[8];
    char text[256];
    ASK(muster_get_fd(context));
    ASK(muster_next_event(context, &event));
    ASK(muster_poll_events(context, &event, 1, 0));
    ASK(muster_event_describe(context, &event, text, sizeof text));
    ASK(muster_event_nodes(context, &event, nodes, sizeof nodes / sizeof *nodes));
}

static void ask_of_agent(muster_ctx_t *context, judge_fn judge)
{
    char text[4096], record[MUSTER_BOOTSTRAP_RECORD_SIZE] = "";
    ASK(muster_why(context, 0, text, sizeof text));
    ASK(muster_control(context, "rails", text, sizeof text));
    ASK(muster_publish(context, "kept", "1", 1));
    ASK(muster_attribute_get(context, 0, "kept", text, sizeof text));
    ASK(muster_attribute_keys(context, 0, text, sizeof text));
    ASK(muster_publish(context, "passing", "1", 1));
    ASK(muster_withdraw(context, "passing"));
    ASK(muster_watch(context, "passing"));
    ASK(muster_unwatch(context, "passing"));
    ASK(muster_bootstrap_record(context, record, 10000));
    ASK(muster_take_bootstrap_records(context, record, 1));
}

static void ask_of_progress(muster_ctx_t *context, judge_fn judge)
{
    uint64_t count;
    char piggyback[MUSTER_PIGGYBACK_MAX];
    ASK(muster_tick_every(context, 0));
    ASK(muster_tick(context));
    ASK(muster_heard_from(context, 0));
    ASK(muster_sent_to(context, 0));
    ASK(muster_piggyback_fill(context, 0, piggyback, sizeof piggyback));
    ASK(muster_piggyback_deliver(context, 0, piggyback, 0));
    ASK(muster_counter(context, "agents_found_again", &count));
}

/* Requires the context of rank 0 on the node "here". */
static void ask_all(muster_ctx_t *context, judge_fn judge)
{
    ask_without_context(judge);
    ask_of_view(context, judge);
    ask_of_events(context, judge);
    ask_of_agent(context, judge);
    ask_of_progress(context, judge);
}

#endif
