/* muster.h - which nodes and ranks of this job are alive, and how that is known.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * One agent per node watches the ranks of its node and, together with the other agents, all nodes of
 * the job. This library connects the calling process to the agent of its node, and starts that agent
 * if it does not run. The library requires only the C library; MPI and PMIx are used if the process
 * has them, before or after MPI_Init.
 *
 * In short:
 *
 *     muster_ctx_t *muster;
 *     muster_config_t config = MUSTER_CONFIG_INIT;
 *     int status = muster_init(&config, &muster);
 *     if (status < 0)
 *         fprintf(stderr, "%s: %s\n", muster_strerror(status), muster_last_error_message());
 *
 *     struct pollfd wait = { muster_get_fd(muster), POLLIN, 0 };
 *     while (poll(&wait, 1, -1) >= 0) {
 *         muster_event_t event = MUSTER_EVENT_INIT;
 *         char text[256];
 *         while (muster_next_event(muster, &event) > 0) {
 *             muster_event_describe(muster, &event, text, sizeof text);
 *             puts(text);
 *         }
 *     }
 *
 * Return values: 0 or a positive count is success, a negative number is one of the codes below.
 * A code never changes its number or its meaning. A call that fails has changed nothing, unless its
 * description states otherwise.
 *
 * Threads: every call may be made from any thread, but none from a signal handler. Each event is returned
 * once, to one of the threads that take events. The library calls back from a thread of its own only after
 * muster_set_callback. It installs no signal handler, and its threads (one; none with MUSTER_NO_THREAD; two
 * with muster_set_callback) block all signals.
 * A thread that is cancelled (pthread_cancel) during a call, or in a callback, ends after the call, so
 * give each wait a timeout.
 *
 * Fork: a forked child has no connection; every call with a context returns MUSTER_ERR_FORKED there. A
 * program that was started by exec connects again. A child that was made by _Fork or by the system call
 * itself, without the C library's fork handlers, is not distinguished from its parent: make no call there.
 */
#ifndef MUSTER_H
#define MUSTER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MUSTER_VERSION_MAJOR 0
#define MUSTER_VERSION_MINOR 1
#define MUSTER_VERSION_PATCH 0
#define MUSTER_VERSION_NUM \
    (MUSTER_VERSION_MAJOR * 1000000 + MUSTER_VERSION_MINOR * 1000 + MUSTER_VERSION_PATCH)
#define MUSTER_VERSION_AT_LEAST(major, minor, patch) \
    (MUSTER_VERSION_NUM >= (major) * 1000000 + (minor) * 1000 + (patch))

/* ------------------------------------------------------------------------------- error codes */

enum {
    MUSTER_OK = 0,

    /* Errors of the call. Nothing was done. */
    MUSTER_ERR_ARGUMENT = -1,        /* an argument is NULL or out of its range */
    MUSTER_ERR_STRUCT_SIZE = -2,     /* struct_size is not set: use the _INIT macro */
    MUSTER_ERR_NOT_INITIALIZED = -3, /* before muster_init, or after the last muster_finalize */
    MUSTER_ERR_FORKED = -4,          /* the context belongs to the parent of this process */
    MUSTER_ERR_CONFIG = -5,          /* a setting (in the struct or the environment) is wrong */
    MUSTER_ERR_NO_SUCH_NODE = -6,    /* no node with that index is known */
    MUSTER_ERR_NO_SUCH_RANK = -7,    /* no rank with that number is known */
    MUSTER_ERR_BUSY = -8,            /* not possible in a callback, or while a callback gets all events */
    MUSTER_ERR_LIMIT = -9,           /* a key, a value or their sum is above its limit */
    MUSTER_ERR_NO_SUCH_KEY = -10,    /* the node has no attribute of that key */
    MUSTER_ERR_REFUSED = -11,        /* the agent refused the request; nothing was changed */
    MUSTER_ERR_NO_SUCH_ZONE = -12,   /* no zone with that number is known */

    /* Errors of the agent of this node. */
    MUSTER_ERR_AGENT_START = -20,    /* it could not be started */
    MUSTER_ERR_AGENT_REFUSED = -21,  /* it does not accept this process */
    MUSTER_ERR_AGENT_LOST = -22,     /* no agent answers now. The library looks for one at growing
                                        intervals (up to 30 s), muster_dispatch at once; it starts
                                        one unless the last one was ended on purpose */
    MUSTER_ERR_TIMEOUT = -23,        /* no answer before the deadline */
    MUSTER_ERR_SYSTEM = -24,         /* the operating system refused something */
    MUSTER_ERR_PERMISSION = -25,     /* a directory, socket or key belongs to another user */

    /* Errors of this process. */
    MUSTER_ERR_OUTCAST = -60,        /* the other members declared this node failed */
    MUSTER_ERR_INTERNAL = -99        /* a defect of Muster; do not use the context again */
};

/* The description of a code (any int): a constant string, never NULL. */
const char *muster_strerror(int code);

/* The name of a code, such as "MUSTER_ERR_TIMEOUT"; "MUSTER_OK" for 0 and for counts,
 * "MUSTER_ERR_UNKNOWN" for an unknown number. Never NULL. */
const char *muster_error_name(int code);

/* The message of the last failed call of this thread: the value, the reason and the remedy. Valid
 * until this thread's next failed call. Never NULL; "" before the first failure. */
const char *muster_last_error_message(void);

/* The version of the library that is loaded (the macros above are those of this header). Each
 * pointer may be NULL. Returns 0. */
int muster_version(int *major, int *minor, int *patch);

/* ------------------------------------------------------------------- connecting, disconnecting */

/* A connection to the agent. A process has one: every muster_init returns the same. */
typedef struct muster_ctx muster_ctx_t;

/* Detect the value: from PMIx, the launcher's environment, or the system. */
#define MUSTER_AUTO (-1)

/* Bits of muster_config_t.flags. */
enum {
    /* Start no thread. PMIx and a restarted agent are then handled only in muster_dispatch and in
     * waits; call one of them from time to time. If the thread that called muster_init ends, the rank
     * has not failed: from then on the agent watches its process, and a promise of ticks ends. */
    MUSTER_NO_THREAD = 1,
    /* Report every failed rank, once confirmed, to Open MPI's ULFM in this process (as MUSTER_ULFM=1
     * in the environment does). MPI cannot undo this. A later muster_init may request it, too: then
     * MPI also gets the earlier failures. */
    MUSTER_FEED_ULFM = 2
};

/* Start from MUSTER_CONFIG_INIT and change what matters; NULL strings and MUSTER_AUTO mean "detect".
 * A member that this library is too old to know must keep its initial value; otherwise muster_init
 * returns MUSTER_ERR_CONFIG. The environment variable in parentheses is the first source of the value. */
typedef struct muster_config {
    size_t struct_size;     /* set by MUSTER_CONFIG_INIT */
    const char *job;        /* the job (MUSTER_JOB; else PMIx, else Slurm) */
    const char *node;       /* this node's name (MUSTER_NODE; else Slurm, else the host's) */
    const char *directory;  /* the directory of the agent's sockets, at most 78 bytes (MUSTER_DIR) */
    int32_t rank;           /* this process's rank, or MUSTER_AUTO */
    int32_t ranks;          /* ranks in the job, or MUSTER_AUTO */
    uint32_t flags;         /* MUSTER_NO_THREAD, MUSTER_FEED_ULFM */
    uint32_t timeout_ms;    /* the longest time that muster_init takes; 0: the default, 10 s */
} muster_config_t;

#define MUSTER_CONFIG_INIT \
    { sizeof(muster_config_t), NULL, NULL, NULL, MUSTER_AUTO, MUSTER_AUTO, 0, 0 }

/* Connects this process to its node's agent, and starts the agent if it does not run. `config` may
 * be NULL for the defaults. Calls are counted: a further call returns the same context and requires a
 * further muster_finalize. Its config is checked, but only MUSTER_FEED_ULFM is used, and timeout_ms
 * while another thread connects or leaves.
 *
 * A started agent is a child of this process for a moment, and the thread that started it waits for it:
 * in this call; after an agent was lost for good in the library's thread at any time, or, without that
 * thread, in muster_dispatch and in waits. So a SIGCHLD may arrive, and a wait for any child (pid -1) in
 * another thread may return that child.
 *
 * Returns 0, or MUSTER_ERR_ARGUMENT, _STRUCT_SIZE, _CONFIG, _FORKED, _AGENT_START, _AGENT_REFUSED,
 * _TIMEOUT, _SYSTEM, _PERMISSION, _BUSY; `*context` is NULL then. A further call with MUSTER_FEED_ULFM
 * may also return MUSTER_ERR_CONFIG, if the first call was without the flag and no PMIx launcher started
 * this process, and _AGENT_LOST, if the agent accepts no message now. Such a call is not counted. */
int muster_init(const muster_config_t *config, muster_ctx_t **context);

/* Undoes one muster_init. The last one announces that this rank leaves in order (other processes get
 * MUSTER_EVENT_RANK_LEFT), closes the connection, and releases the reference to PMIx. Do not use the
 * descriptor of muster_get_fd after it. Call it before or after MPI_Finalize. A process that ends
 * without it is reported as failed, even if its exit code is 0.
 *
 * Returns 0, or MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _BUSY; or MUSTER_ERR_TIMEOUT: all is
 * done, but the callback of muster_set_callback still runs. */
int muster_finalize(muster_ctx_t *context);

/* As muster_finalize. The last one also announces the exit code (0 to 255) of this process; it is the
 * `code` of MUSTER_EVENT_RANK_LEFT in all processes. */
int muster_leave(muster_ctx_t *context, int exit_code);

/* Bootstrap without PMIx. The agents of a job then find each other through bootstrap records: collect the
 * record of each process in all processes, by MPI_Allgather (muster_mpi_init of muster_mpi.h does all of
 * this) or by any other means, and pass them to muster_take_bootstrap_records in the order of the ranks. A
 * record of zeros stands for a process without Muster. The record of rank 0 contains the job's key: keep it
 * secret outside of the job. */
#define MUSTER_BOOTSTRAP_RECORD_SIZE 320

/* Writes MUSTER_BOOTSTRAP_RECORD_SIZE bytes, as soon as the agent has reported its address. Returns 0, or
 * MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _TIMEOUT. */
int muster_bootstrap_record(muster_ctx_t *context, void *record, uint32_t timeout_ms);

/* Passes the other nodes' records to the agent. Returns the number of nodes that it passed, at most 64 (these
 * lead to all others), or 0 if another process of this node passes them; or MUSTER_ERR_ARGUMENT,
 * _NOT_INITIALIZED, _FORKED, _TIMEOUT, _AGENT_REFUSED for an invalid record. */
int muster_take_bootstrap_records(muster_ctx_t *context, const void *records, size_t processes);

/* ---------------------------------------------------------------------------------------- view */

/* States of a node. */
enum {
    MUSTER_NODE_UNKNOWN = 0,  /* not known, or not yet */
    MUSTER_NODE_ALIVE = 1,
    MUSTER_NODE_DEGRADED = 2, /* alive; some of its rails are silent */
    MUSTER_NODE_SUSPECT = 3,  /* silent; may still refute the suspicion */
    MUSTER_NODE_FAILED = 4,   /* confirmed */
    MUSTER_NODE_LEFT = 5      /* left in order */
};

/* States of a rank. */
enum {
    MUSTER_RANK_UNKNOWN = 0,  /* has not connected yet */
    MUSTER_RANK_ALIVE = 1,
    MUSTER_RANK_HUNG = 2,     /* the process exists but does not run, or does not tick */
    MUSTER_RANK_FAILED = 3,   /* confirmed; also every rank of a failed node */
    MUSTER_RANK_LEFT = 4      /* finalized in order */
};

/* "no node", "no rank" in an event. */
#define MUSTER_NONE UINT32_MAX

/* The state of one node or rank: a read from shared memory, no system call. While no agent answers
 * (MUSTER_ERR_AGENT_LOST of muster_next_event), the states do not change.
 * Returns one of the states above, or MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED,
 * _NO_SUCH_NODE, _NO_SUCH_RANK. */
int muster_node_state(muster_ctx_t *context, uint32_t node);
int muster_rank_state(muster_ctx_t *context, uint32_t rank);

/* The index of the node that a rank runs on. Returns the index, or as muster_rank_state; a rank
 * that never connected has no node (MUSTER_ERR_NO_SUCH_NODE). Node indices belong to this process:
 * two processes may number the same nodes differently; names are the same in all processes. A restarted
 * agent (MUSTER_EVENT_OVERFLOW with MUSTER_CAUSE_NEW_AGENT) may number the nodes differently, too: find
 * them again by name. If muster_epoch is the same before and after some calls, they used one numbering. */
int muster_rank_node(muster_ctx_t *context, uint32_t rank);

/* The name of a node, truncated to fit and always terminated. As snprintf: returns the length of the
 * whole name, so a return value of `size` or more means that it was truncated. `buffer` may be NULL if
 * `size` is 0.
 * Errors: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _NO_SUCH_NODE. */
int muster_node_name(muster_ctx_t *context, uint32_t node, char *buffer, size_t size);

/* The failure group of a node: what it shares with nodes that may fail together with it (MUSTER_GROUP: a
 * rack, a switch); "" if none was set. As muster_node_name. */
int muster_node_group(muster_ctx_t *context, uint32_t node, char *buffer, size_t size);

/* How many nodes, and ranks, are known by index (failed ones included): valid indices are 0 to one
 * less. This is not the size of the job: a rank is counted when news of it arrives, and just after
 * MPI_Init some or all may be missing. Wait for them by muster_wait_ranks.
 * Errors: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_node_count(muster_ctx_t *context);
int muster_rank_count(muster_ctx_t *context);

/* How many of them are in one state. Errors: as above; MUSTER_ERR_ARGUMENT also for an invalid
 * state. */
int muster_nodes_in_state(muster_ctx_t *context, int state);
int muster_ranks_in_state(muster_ctx_t *context, int state);

/* The rank of this process, and the index of its node. MUSTER_ERR_NO_SUCH_RANK if this process has
 * no rank (no launcher, and none configured). */
int muster_my_rank(muster_ctx_t *context);
int muster_my_node(muster_ctx_t *context);

/* A number that grows with every change of any state, and continues over a restart of the agent. If it
 * is the same before and after some calls, no state changed between them. */
int muster_epoch(muster_ctx_t *context, uint64_t *epoch);

/* Copies the states of all nodes, or ranks, by index: one byte each, all of the same epoch. Returns how
 * many are known. If that is more than `size`, only the first `size` were copied; bytes beyond them
 * are 0. `states` may be NULL if `size` is 0, `epoch` may be NULL. Errors: MUSTER_ERR_ARGUMENT,
 * _NOT_INITIALIZED, _FORKED; _TIMEOUT if the states changed faster than they could be copied: do not use
 * the content of `states` then. */
int muster_node_states(muster_ctx_t *context, uint8_t *states, size_t size, uint64_t *epoch);
int muster_rank_states(muster_ctx_t *context, uint8_t *states, size_t size, uint64_t *epoch);

/* The index of the node with this name. Errors: as muster_epoch; MUSTER_ERR_NO_SUCH_NODE. */
int muster_node_find(muster_ctx_t *context, const char *name);

/* The ranks that run on a node, in order. Writes up to `size` of them and returns how many there are.
 * `ranks` may be NULL if `size` is 0. Errors: as muster_node_state. */
int muster_node_ranks(muster_ctx_t *context, uint32_t node, uint32_t *ranks, size_t size);

/* Zones. The nodes of a large job are divided into zones, each of nodes that watch each other (MUSTER_ZONES).
 * muster_zone_count returns how many there are: valid numbers are 0 to one less, in the natural order of
 * names, and the same in all processes. A job that is not divided is one zone, number 0, named "/", with all
 * nodes. The zones are known from the start and do not change, and so are, in a job of several zones, all
 * nodes of the job. Errors: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_zone_count(muster_ctx_t *context);

/* The number of the zone of a node, and of the node that a rank runs on. MUSTER_ERR_NO_SUCH_ZONE if the node
 * is not in the job's list of nodes (MUSTER_NODES). Other errors: as muster_node_state, muster_rank_node. */
int muster_node_zone(muster_ctx_t *context, uint32_t node);
int muster_rank_zone(muster_ctx_t *context, uint32_t rank);

/* The name of a zone: its path, outermost zone first, as in "row1/rack3"; at most 191 bytes. As
 * muster_node_name. Errors: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _NO_SUCH_ZONE. */
int muster_zone_name(muster_ctx_t *context, uint32_t zone, char *buffer, size_t size);

/* The nodes of a zone, in order, as indices. Writes up to `size` of them and returns how many there are.
 * `nodes` may be NULL if `size` is 0. Errors: as muster_zone_name. */
int muster_zone_nodes(muster_ctx_t *context, uint32_t zone, uint32_t *nodes, size_t size);

/* How many nodes of a zone are in one state. Errors: as muster_zone_name; MUSTER_ERR_ARGUMENT also for an
 * invalid state. */
int muster_zone_nodes_in_state(muster_ctx_t *context, uint32_t zone, int state);

/* A state as a member of a set of states: MUSTER_STATE(MUSTER_RANK_FAILED) | ... */
#define MUSTER_STATE(state) (1u << (state))

/* Waits until the node, or rank, is in one of these states, for at most `timeout_ms`, on this thread
 * and without taking events. An index that is not known yet is Unknown. The wait follows the name of a known
 * node, since a restarted agent may give that node another index. Any number of threads may wait. Without a
 * library thread the wait also dispatches. A lost agent does not end the wait, since a new one may come.
 * UINT32_MAX is 49 days. Returns the state, or MUSTER_ERR_TIMEOUT, _ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_wait_node(muster_ctx_t *context, uint32_t node, uint32_t states, uint32_t timeout_ms);
int muster_wait_rank(muster_ctx_t *context, uint32_t rank, uint32_t states, uint32_t timeout_ms);

/* Waits until at least `ranks` ranks are in one of these states, for example until all have started.
 * Returns how many are, or as muster_wait_rank. */
int muster_wait_ranks(muster_ctx_t *context, uint32_t ranks, uint32_t states, uint32_t timeout_ms);

/* Explains the state of a node: lines of text with each observation, its reporter and its time, as
 * `muster why` prints them. As snprintf: returns the length of the whole text. Sends a request to the
 * agent and waits for its answer, at most 5 s. Errors: as muster_node_state; MUSTER_ERR_AGENT_LOST,
 * _TIMEOUT, _SYSTEM, and _REFUSED if the agent has too many requests at once. */
int muster_why(muster_ctx_t *context, uint32_t node, char *buffer, size_t size);

/* Promises that this process calls muster_tick at least every `period_ms` milliseconds from now on; 0
 * ends the promise. While the process breaks the promise it is MUSTER_RANK_HUNG for the whole job, with the
 * cause MUSTER_CAUSE_NO_TICK (or _STOPPED, _STUCK if the kernel reports that reason); its next tick, or the
 * end of the promise, is MUSTER_EVENT_RANK_RESUMED. It has no other effect. The agent checks four times in
 * the shortest period of its node, with an interval of at least 5 ms and at most 500 ms. A process that is
 * stopped by a debugger, or frozen by its control group (a suspended job), breaks no promise.
 * Errors of both: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_tick_every(muster_ctx_t *context, uint32_t period_ms);

/* Reports progress: a store to shared memory, no system call. */
int muster_tick(muster_ctx_t *context);

/* Messages of the application replace heartbeats. muster_heard_from states that this process has received
 * a message from `rank`: the node of `rank` is alive, as if it had sent one heartbeat. muster_sent_to
 * states that this process has sent a message to `rank`: of two successive heartbeats to that node one is
 * omitted. Call both, on both sides, or neither: a node whose ranks do not report what they receive
 * requests the missing heartbeats, and gets them. If a node has several rails, no heartbeat is omitted,
 * since heartbeats also watch the rails. Each call is a load and a store, no system call. libmuster-pmpi.so
 * makes the calls for the messages of an MPI program in C; muster_heard_from(3) lists the messages that it
 * does not cover. Errors of both: MUSTER_ERR_NO_SUCH_RANK (its node is not known yet), _ARGUMENT,
 * _NOT_INITIALIZED, _FORKED. */
int muster_heard_from(muster_ctx_t *context, uint32_t rank);
int muster_sent_to(muster_ctx_t *context, uint32_t rank);

/* A message of the application can carry a heartbeat, and news about other members with it. Before a message
 * to `rank`, fill writes at most MUSTER_PIGGYBACK_MAX bytes and returns how many. It usually returns 0: there
 * are bytes only in the last quarter of a heartbeat interval, once for each node. Send these bytes with the
 * message, and pass them to deliver where the message is received; there, `rank` is its sender. The heartbeat
 * that was carried is not sent. Neither call blocks or makes a system call. The bytes are authenticated:
 * truncated, damaged or repeated bytes do no harm. Lost bytes do little harm, since most heartbeats are
 * still sent separately. With age gossip the bytes are the ping to the node that is pinged next, in the last
 * quarter of a cycle. deliver returns 0. Errors of both: MUSTER_ERR_ARGUMENT (also for a `size` below, or a
 * `length` above MUSTER_PIGGYBACK_MAX), _NO_SUCH_RANK, _NOT_INITIALIZED, _FORKED. */
#define MUSTER_PIGGYBACK_MAX 112
int muster_piggyback_fill(muster_ctx_t *context, uint32_t rank, void *buffer, size_t size);
int muster_piggyback_deliver(muster_ctx_t *context, uint32_t rank, const void *buffer, size_t length);

/* "Alive", "Failed" ...; "?" for an invalid state. Never NULL. */
const char *muster_node_state_name(int state);
const char *muster_rank_state_name(int state);

/* ---------------------------------------------------------------------------------------- PMIx */

/* In a process that a PMIx launcher started, the library reports the state of each rank through PMIx, in this
 * process only: register a handler (PMIx_Register_event_handler) for one of these codes;
 * PMIX_EVENT_AFFECTED_PROC is the rank. Default handlers, which end jobs, are not called. The last report
 * counts: a state that has ended before it could be reported is not reported. A handler runs on a thread of
 * PMIx, which the library may be waiting for. Of Muster's calls it may make only those that read states or
 * counters, and those that make no system call. */
enum {
    MUSTER_PMIX_SUSPECT = -3701,     /* its node is silent, not yet confirmed */
    MUSTER_PMIX_DEGRADED = -3702,    /* some of its node's rails are silent */
    MUSTER_PMIX_HUNG = -3703,        /* it exists but does not run, or does not tick */
    MUSTER_PMIX_NODE_FAILED = -3704, /* its node has failed, confirmed */
    MUSTER_PMIX_RANK_FAILED = -3705, /* it has failed, its node is alive */
    MUSTER_PMIX_BACK = -3706         /* the reported state has ended */
};

/* Counters of this process, by name: "pmix_notified" and "pmix_refused" (events that PMIx accepted, or
 * refused since it was finalized), "pmix_heard" and "pmix_heard_dropped" (ends of ranks that the launcher
 * reported), "agents_found_again". Errors: MUSTER_ERR_ARGUMENT (no such counter),
 * _NOT_INITIALIZED, _FORKED. */
int muster_counter(muster_ctx_t *context, const char *name, uint64_t *value);

/* -------------------------------------------------------------------------------------- events */

/* What happened. */
enum {
    MUSTER_EVENT_NODE_UP = 1,        /* a node joined, or came back */
    MUSTER_EVENT_NODE_DEGRADED = 2,  /* some of its rails are silent */
    MUSTER_EVENT_NODE_RECOVERED = 3, /* all its rails answer again */
    MUSTER_EVENT_NODE_SUSPECT = 4,
    MUSTER_EVENT_NODE_FAILED = 5,    /* confirmed, and with it all its ranks */
    MUSTER_EVENT_NODE_LEFT = 6,
    MUSTER_EVENT_RANK_UP = 7,
    MUSTER_EVENT_RANK_HUNG = 8,
    MUSTER_EVENT_RANK_RESUMED = 9,
    MUSTER_EVENT_RANK_FAILED = 10,   /* confirmed */
    MUSTER_EVENT_RANK_LEFT = 11,
    MUSTER_EVENT_OUTCAST = 12,       /* the other members declared this node failed; MPI may be lost */
    MUSTER_EVENT_OVERFLOW = 13,      /* events were lost (taken too late), or the agent was
                                        restarted (MUSTER_CAUSE_NEW_AGENT) and may have given the
                                        nodes other indices: read the states again */
    MUSTER_EVENT_ATTRIBUTE = 14,     /* a watched attribute of the node was written or deleted */
    MUSTER_EVENT_GROUP_FAILED = 15,  /* nodes of one group failed within one window; each failure
                                        was an event before: see muster_event_nodes */
    MUSTER_EVENT_MINORITY = 16,      /* this node is on the smaller side of a split, or more than
                                        half have failed; `code` is 1 if verdicts are held */
    MUSTER_EVENT_MAJORITY = 17,      /* the minority has ended */
    MUSTER_EVENT_NODE_REFUSED = 18   /* a node of this job has different settings, so neither node
                                        accepts messages of the other; `code` is 1 for another
                                        release of Muster (the node has no name then), 2 heartbeat,
                                        3 deadline, 4 reporters, 5 rules, 6 what a minority does,
                                        7 the engine, 8 the interval of age gossip, 9 its
                                        participants, 10 the zones */
};

/* The cause: how it is known. */
enum {
    MUSTER_CAUSE_NONE = 0,
    MUSTER_CAUSE_SILENCE = 1,      /* no heartbeat on any rail before the deadline */
    MUSTER_CAUSE_FUTEX = 2,        /* the node's kernel, at once: the process is being torn down */
    MUSTER_CAUSE_PIDFD = 3,        /* the node's kernel: the process has ended */
    MUSTER_CAUSE_CORE_DUMP = 4,    /* the process writes a core dump: found by polling at 2 Hz; a
                                      shorter core dump is reported by its signal */
    MUSTER_CAUSE_STOPPED = 5,      /* the process is stopped by a signal */
    MUSTER_CAUSE_ANNOUNCED = 6,    /* the process or node announced it */
    MUSTER_CAUSE_UNREACHABLE = 7,  /* the network reports it as unreachable */
    MUSTER_CAUSE_TOLD = 8,         /* reported by the launcher or an administrator */
    MUSTER_CAUSE_NODE_FAILED = 9,  /* its node failed */
    MUSTER_CAUSE_REFUTED = 10,     /* a suspicion was refuted */
    MUSTER_CAUSE_JOINED = 11,      /* it is new */
    MUSTER_CAUSE_STUCK = 12,       /* the process does not return from the kernel */
    MUSTER_CAUSE_NO_TICK = 13,     /* the process does not tick as it promised */
    MUSTER_CAUSE_NEW_AGENT = 14    /* of MUSTER_EVENT_OVERFLOW: the agent was restarted */
};

/* One event. Set struct_size by MUSTER_EVENT_INIT once; the struct may be used repeatedly. */
typedef struct muster_event {
    size_t struct_size;      /* set by MUSTER_EVENT_INIT */
    uint64_t sequence;       /* the event's number in this node's agent; missing numbers may be
                                attributes that this process does not watch */
    uint64_t verdict_ns;     /* when this node's agent knew of it, CLOCK_MONOTONIC of this node */
    uint64_t delivered_ns;   /* when this call returned it, same clock */
    int32_t kind;            /* MUSTER_EVENT_NODE_UP ... MUSTER_EVENT_NODE_REFUSED */
    int32_t cause;           /* MUSTER_CAUSE_... */
    uint32_t node;           /* index of the node, or MUSTER_NONE */
    uint32_t rank;           /* the rank, or MUSTER_NONE if it concerns the whole node */
    int32_t code;            /* of a failed rank the signal, or minus the exit code; of a rank that
                                left its exit code; 0 if not known */
    uint32_t silent_us;      /* length of the silence in us, 0 if the cause was not silence */
    uint32_t reporter_count; /* how many members reported it */
    uint32_t reporters[3];   /* node indices of the first of them, else MUSTER_NONE */
    uint64_t lost;           /* of MUSTER_EVENT_OVERFLOW: events lost, 0 if it cannot be known */
    uint64_t key_hash;       /* of MUSTER_EVENT_ATTRIBUTE: muster_key_hash of the key */
    uint32_t count;          /* of MUSTER_EVENT_GROUP_FAILED: how many nodes failed; of _MINORITY
                                and _MAJORITY: how many are on this side, this one included; of
                                _NODE_REFUSED: the value of this node */
    uint32_t total;          /* of these: of how many nodes; the value of the other node */
} muster_event_t;

#define MUSTER_EVENT_INIT \
    { sizeof(muster_event_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0, 0, 0 }, 0, 0, 0, 0 }

/* A descriptor for poll, select or epoll that is readable while events wait; do not read from it
 * or close it. It does not change until the last muster_finalize.
 * Errors: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_get_fd(muster_ctx_t *context);

/* Takes the next event. Never blocks. Returns 1 with an event, 0 if there is none, or
 * MUSTER_ERR_ARGUMENT, _STRUCT_SIZE, _NOT_INITIALIZED, _FORKED, _AGENT_LOST. */
int muster_next_event(muster_ctx_t *context, muster_event_t *event);

/* Takes up to `most` events into an array, and waits at most `timeout_ms` for the first; with 0 it never
 * blocks. Set struct_size of the first one by MUSTER_EVENT_INIT: all of them have that size. Without a
 * library thread this also dispatches. If the agent is lost, it waits for another one, up to the deadline.
 * Returns the number of events, 0 if none came, or as muster_next_event; MUSTER_ERR_ARGUMENT also if `most`
 * is 0. */
int muster_poll_events(muster_ctx_t *context, muster_event_t *events, size_t most,
                       uint32_t timeout_ms);

/* Called with each event, on the thread that called muster_dispatch. It may call every function except
 * muster_init, muster_finalize, muster_leave, muster_dispatch and muster_set_callback (MUSTER_ERR_BUSY). Its
 * context and event are valid until it returns. It must return: no exception, no longjmp out of it. */
typedef void (*muster_event_fn)(muster_ctx_t *context, const muster_event_t *event,
                                void *argument);

/* Calls `callback` with each event that waits (at most 1024), in order. Never blocks, except in the
 * callback, and, with MUSTER_NO_THREAD after the agent was lost, for the search for another one
 * or its start, which takes at most timeout_ms. Returns the number of events, or as muster_next_event,
 * or MUSTER_ERR_BUSY. */
int muster_dispatch(muster_ctx_t *context, muster_event_fn callback, void *argument);

/* What a callback on a thread of the library requires: it is safe there, concurrently with every other
 * thread of the process, at any moment. It calls MPI only if MPI_Init_thread returned
 * MPI_THREAD_MULTIPLE. There is no other level: a callback that needs its own thread uses muster_dispatch. */
enum { MUSTER_CALLBACK_THREAD_SAFE = 1 };

/* Calls `callback` from now on with each event when it arrives, in order, one at a time, on a thread that
 * the library starts for it. This ends with a call with NULL (`argument` and `safety` are ignored then) or
 * with the last muster_finalize. Both return after the callback has returned, it is not called again after
 * that, and the connection is valid until then. They wait for a running callback for at most 10 s and then
 * return MUSTER_ERR_TIMEOUT, with all else done; what the callback uses must stay valid until it returns.
 * While a callback is set, muster_next_event, muster_poll_events (also a call that waits already) and
 * muster_dispatch return MUSTER_ERR_BUSY, and so does this call with a second callback.
 * The callback may make the calls that muster_event_fn may make. A lost agent is no event; its successor is.
 * Returns 0, or MUSTER_ERR_ARGUMENT (also for any other `safety`), _NOT_INITIALIZED, _FORKED, _BUSY,
 * _CONFIG with MUSTER_NO_THREAD, _SYSTEM; _TIMEOUT if a running callback has not returned for 10 s: it is
 * not called again, and this call may be repeated. */
int muster_set_callback(muster_ctx_t *context, muster_event_fn callback, void *argument, int safety);

/* The nodes that an event is about, by index: those of a MUSTER_EVENT_GROUP_FAILED (until a later one
 * lists them again), else the node that it names, if any. Writes up to `size` of them and returns how
 * many there are. `nodes` may be NULL if `size` is 0. A group failure is an additional event, if at
 * least two nodes of a group, and at least half of those that were alive, failed within four deadlines.
 * Errors: MUSTER_ERR_ARGUMENT, _STRUCT_SIZE, _NOT_INITIALIZED, _FORKED. */
int muster_event_nodes(muster_ctx_t *context, const muster_event_t *event, uint32_t *nodes,
                       size_t size);

/* "RANK_FAILED", "NODE_UP" ...; "?" for an invalid kind. Never NULL. */
const char *muster_event_name(int kind);

/* "kernel futex", "silence" ...; "?" for an invalid cause. Never NULL. */
const char *muster_cause_name(int cause);

/* One line of text: "rank 3 on nodeb FAILED: killed by signal 9 (kernel futex), 0.2 ms", where the
 * time is the length of the silence, or the time since the agent knew. As snprintf: returns the length
 * of the whole text. Errors: MUSTER_ERR_ARGUMENT, _STRUCT_SIZE, _NOT_INITIALIZED, _FORKED. */
int muster_event_describe(muster_ctx_t *context, const muster_event_t *event, char *buffer,
                          size_t size);

/* ---------------------------------------------------------------------------------- attributes */

/* Each node has a small map of keys and values that its processes write (the last writer of a key
 * wins) and that every process of the job can read: a load, a port, a role. All processes see the writes of
 * one node in the same order. A map exists as long as its node's agent; it is removed when the node leaves or
 * fails. Keys are texts of 1 to 255 bytes; those that begin with "muster." are reserved, and all but
 * MUSTER_KEY_MONITOR are refused. Values are any bytes, at most 65536. All attributes of one node have at
 * most 1 MiB, including 64 bytes for each key. Each call sends a request to the agent of this node and
 * waits for its answer: microseconds, with a deadline of 5 s. Errors of all calls, in addition to those that
 * are listed with each: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _LIMIT, _REFUSED, _AGENT_LOST (then
 * the change may or may not have been made, and the call may be repeated), _TIMEOUT (likewise), _SYSTEM. */

/* A node with this attribute, with any value, is a monitor: members that find a suspicion or a failure
 * report it to the monitor directly, and not only through other members. */
#define MUSTER_KEY_MONITOR "muster.monitor"

/* Writes an attribute of this node. `value` may be NULL if `size` is 0.
 * Returns 0, or MUSTER_ERR_OUTCAST if this node is no longer a member. */
int muster_publish(muster_ctx_t *context, const char *key, const void *value, size_t size);

/* Deletes an attribute of this node. Returns 1, or 0 if there was none, or MUSTER_ERR_OUTCAST. If the
 * agent's worker was lost before it answered and the request was repeated, 1 means that there was an
 * attribute, or may have been. */
int muster_withdraw(muster_ctx_t *context, const char *key);

/* Copies the value of a node's attribute, truncated to fit; the last value that has arrived here. Returns
 * the length of the whole value, so a return value above `size` means that it was truncated; or
 * MUSTER_ERR_NO_SUCH_KEY, _NO_SUCH_NODE. `buffer` may be NULL if `size` is 0. */
int muster_attribute_get(muster_ctx_t *context, uint32_t node, const char *key, void *buffer,
                         size_t size);

/* From now on every change of this key, on any node, is a MUSTER_EVENT_ATTRIBUTE of this process: read the
 * attribute when the event comes (changes in quick succession may be one event). Earlier writes are no
 * events: read the attribute once after this call. At most 256 keys a process.
 * Returns 0. */
int muster_watch(muster_ctx_t *context, const char *key);

/* Ends the watch of this key at once: no later call returns an event of it. Returns 1, or 0 if it was not
 * watched. */
int muster_unwatch(muster_ctx_t *context, const char *key);

/* Writes the keys of a node's attributes, in order, each terminated, one after the other: as many as fit
 * entirely. Returns the length of all, terminators included, so a return value above `size` means that some
 * are missing; or MUSTER_ERR_NO_SUCH_NODE. `buffer` may be NULL if `size` is 0. If length <= size, iterate
 * over them by:
 *
 *     for (const char *key = buffer; key < buffer + length; key += strlen(key) + 1)
 */
int muster_attribute_keys(muster_ctx_t *context, uint32_t node, char *buffer, size_t size);

/* The hash by which events name a key: the same in all processes and releases. 0 for NULL. */
uint64_t muster_key_hash(const char *key);

/* ------------------------------------------------------------------- rails, peers, policy, counters */

/* Sends a request to the agent of this node, to read or to change something while the agent runs: the
 * requests of the commands of muster(1). `request` is one line:
 *
 *     members | why NAME | stats                          the members, and counters
 *     rails | rails NET INDEX | nets | policy             the configuration in use, with counters
 *     peers MOST BEHIND                                   at most MOST peers, after the first BEHIND
 *     explain [FROM] TO                                   the path that a message takes now, and why
 *     relays | policy relay on | policy relay off         relayed messages, and whether to relay
 *     export                                              the configuration, as YAML in JSON
 *     rails add NID [partitions=0,1] | rails set NID [partitions=0,1] | rails del NID
 *     limits set NAME=NUMBER ...                          numa_range, sensitivity ...
 *     peers add NIDS | peers del NIDS                     with ranges: 10.0.0.[1-4]@udp0
 *     policy add net=NET [priority=P] [messages=N]        or local=PATTERN ... [remote=PATTERN ...]
 *     policy del NUMBER
 *     stats zero
 *
 * or the line "import" followed by a whole configuration. The answer is JSON with the name of its
 * schema. It is written as by snprintf: truncated to fit and terminated; the whole length is returned (a
 * change is made even if its answer is truncated). `buffer` may be NULL if `size` is 0. A change is made
 * entirely or not at all. muster(7) and the pages of the commands explain the requests.
 *
 * Returns the length, or MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _REFUSED (the reason is in
 * muster_last_error_message), _AGENT_LOST, _TIMEOUT, _SYSTEM (then a change may or may not have been
 * made). Waits at most 5 s. */
int muster_control(muster_ctx_t *context, const char *request, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* MUSTER_H */
