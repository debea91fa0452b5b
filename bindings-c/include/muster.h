/* muster.h - which nodes and ranks of this job are alive, and how that is known.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * One agent per node watches the ranks of its node and, together with its peers, all nodes of the
 * job. This library connects the calling process to that agent (and starts it, if nobody has). It
 * needs nothing but the C library; MPI and PMIx are used if the process has them, before or after
 * MPI_Init.
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
 * A code keeps its number and its meaning forever. What a failed call has done is said with the
 * call; where nothing is said, it has changed nothing.
 *
 * Threads: every call may be made from any thread, but none from a signal handler. Each event is handed
 * out once, whichever thread asks for it. Nothing is called back from a thread of the library, unless
 * muster_set_callback asks for that. The library installs no signal handler, and its threads (one, none
 * with MUSTER_NO_THREAD, two with muster_set_callback) block all signals. A thread that is cancelled
 * (pthread_cancel) during a call, or in a callback, ends after the call: give waits a timeout.
 *
 * Fork: a forked child has no connection; there, every call with a context returns
 * MUSTER_ERR_FORKED. A program that was started by exec connects anew. A child that was made by _Fork or by
 * the system call alone, past the C library's handlers, looks like its parent: no call is to be made there.
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

    /* The call: nothing was done. */
    MUSTER_ERR_ARGUMENT = -1,        /* an argument is NULL or out of its range */
    MUSTER_ERR_STRUCT_SIZE = -2,     /* struct_size is not set: use the _INIT macro */
    MUSTER_ERR_NOT_INITIALIZED = -3, /* before muster_init, or after the last muster_finalize */
    MUSTER_ERR_FORKED = -4,          /* the context belongs to the parent of this process */
    MUSTER_ERR_CONFIG = -5,          /* a setting (in the struct or the environment) is wrong */
    MUSTER_ERR_NO_SUCH_NODE = -6,    /* no node with that index is known */
    MUSTER_ERR_NO_SUCH_RANK = -7,    /* no rank with that number is known */
    MUSTER_ERR_BUSY = -8,            /* not from within a callback, nor while events go to another */
    MUSTER_ERR_LIMIT = -9,           /* a key, a value or all of them together are too long */
    MUSTER_ERR_NO_SUCH_KEY = -10,    /* the node has no attribute of that key */
    MUSTER_ERR_REFUSED = -11,        /* the agent refused the request; nothing was changed */

    /* The agent of this node. */
    MUSTER_ERR_AGENT_START = -20,    /* it could not be started */
    MUSTER_ERR_AGENT_REFUSED = -21,  /* it does not accept this process */
    MUSTER_ERR_AGENT_LOST = -22,     /* none answers now. The library looks for one, more and more
                                        seldom (every 30 s), muster_dispatch at once; it starts
                                        one unless the last was ended on purpose */
    MUSTER_ERR_TIMEOUT = -23,        /* no answer before the deadline */
    MUSTER_ERR_SYSTEM = -24,         /* the operating system refused something */
    MUSTER_ERR_PERMISSION = -25,     /* a directory, socket or key belongs to somebody else */

    /* This process. */
    MUSTER_ERR_OUTCAST = -60,        /* the others declared this node failed */
    MUSTER_ERR_INTERNAL = -99        /* a defect of Muster; the context is not to be used again */
};

/* A constant sentence for a code (any int). Never NULL, never allocated. */
const char *muster_strerror(int code);

/* The name of a code, such as "MUSTER_ERR_TIMEOUT"; "MUSTER_OK" for 0 and for counts,
 * "MUSTER_ERR_UNKNOWN" for a number that is none. Never NULL. */
const char *muster_error_name(int code);

/* What exactly went wrong in the last call of this thread that failed: which value, why, and what
 * to do. Valid until this thread's next call that fails. Never NULL; "" before the
 * first failure. */
const char *muster_last_error_message(void);

/* The version of the library that is loaded (the macros above are those of this header). Each
 * pointer may be NULL. Returns 0. */
int muster_version(int *major, int *minor, int *patch);

/* ------------------------------------------------------------------- connecting, disconnecting */

/* A connection to the agent. There is one a process: every muster_init returns the same. */
typedef struct muster_ctx muster_ctx_t;

/* Find it out: from PMIx, the launcher's environment, or the system. */
#define MUSTER_AUTO (-1)

/* Bits of muster_config_t.flags. */
enum {
    /* Start no thread. Then PMIx and a restarted agent are attended to in muster_dispatch and in
     * waits only, one of which must be called now and then. The end of the thread that called
     * muster_init is no failure of the rank: its process is followed from then on, and a promise of
     * ticks is over. */
    MUSTER_NO_THREAD = 1,
    /* Tell Open MPI's ULFM, in this process, of every rank that is confirmed dead (as MUSTER_ULFM=1
     * in the environment does). MPI cannot take a death back. A later muster_init may ask for it, too: then
     * MPI is also told of those that died before. */
    MUSTER_FEED_ULFM = 2
};

/* Start from MUSTER_CONFIG_INIT and change what matters; NULL strings and MUSTER_AUTO mean "find
 * it out". A setting that this library is too old to know is MUSTER_ERR_CONFIG, unless it is left as it was. The environment variable in parentheses gives the value that is found first. */
typedef struct muster_config {
    size_t struct_size;     /* set by MUSTER_CONFIG_INIT */
    const char *job;        /* the job (MUSTER_JOB; else PMIx, else Slurm) */
    const char *node;       /* this node's name (MUSTER_NODE; else Slurm, else the host's) */
    const char *directory;  /* where the agent's sockets are, up to 78 bytes (MUSTER_DIR) */
    int32_t rank;           /* this process's rank, or MUSTER_AUTO */
    int32_t ranks;          /* ranks in the job, or MUSTER_AUTO */
    uint32_t flags;         /* MUSTER_NO_THREAD, MUSTER_FEED_ULFM */
    uint32_t timeout_ms;    /* how long muster_init may take; 0 for the default of 10 s */
} muster_config_t;

#define MUSTER_CONFIG_INIT \
    { sizeof(muster_config_t), NULL, NULL, NULL, MUSTER_AUTO, MUSTER_AUTO, 0, 0 }

/* Connects this process to its node's agent, and starts the agent if there is none. `config` may
 * be NULL for the defaults. Counted: a further call returns the same context and wants a further
 * muster_finalize. Its config is checked but otherwise ignored, except for MUSTER_FEED_ULFM, and for
 * timeout_ms while another thread connects or leaves. An agent that is started is a child of this process for a moment,
 * which is waited for by who starts it: this call, and after an agent was lost for good the library's
 * thread at any time, or without one muster_dispatch and waits. So a SIGCHLD may come, and a wait for any
 * child (pid -1) in another thread may see its end.
 *
 * Returns 0, or MUSTER_ERR_ARGUMENT, _STRUCT_SIZE, _CONFIG, _FORKED, _AGENT_START, _AGENT_REFUSED,
 * _TIMEOUT, _SYSTEM, _PERMISSION, _BUSY; `*context` is NULL then. A further call with MUSTER_FEED_ULFM also
 * MUSTER_ERR_CONFIG where the first one was without it and no PMIx launcher started this process, and
 * _AGENT_LOST if the agent takes no message now: it then counts for nothing. */
int muster_init(const muster_config_t *config, muster_ctx_t **context);

/* Undoes one muster_init. The last one announces that this rank leaves in order (the others see
 * MUSTER_EVENT_RANK_LEFT), closes the connection, and gives the reference to PMIx back. The
 * descriptor of muster_get_fd is not to be used after it. Call it before or after MPI_Finalize. A
 * process that ends without it is reported as failed, even if it returns 0.
 *
 * Returns 0, or MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _BUSY; or MUSTER_ERR_TIMEOUT: done, but the
 * callback of muster_set_callback still runs. */
int muster_finalize(muster_ctx_t *context);

/* As muster_finalize, and the last one says with which exit code (0 to 255) this process will end:
 * it is the `code` of MUSTER_EVENT_RANK_LEFT everywhere. */
int muster_leave(muster_ctx_t *context, int exit_code);

/* Where no PMIx tells the agents of a job of each other: bring the record of each process to all of them,
 * by MPI_Allgather (muster_mpi_init of muster_mpi.h does all of this) or whatever the job has, and give
 * them to muster_take_bootstrap_records in the order of the ranks. A record of zeros stands for a process without
 * Muster. The record of rank 0 has the job's key on it: show it to nobody outside of the job. */
#define MUSTER_BOOTSTRAP_RECORD_SIZE 320

/* Writes MUSTER_BOOTSTRAP_RECORD_SIZE bytes, once the agent has said its address. Returns 0, or MUSTER_ERR_ARGUMENT,
 * _NOT_INITIALIZED, _FORKED, _TIMEOUT. */
int muster_bootstrap_record(muster_ctx_t *context, void *record, uint32_t timeout_ms);

/* Tells the agent of the others. Returns of how many nodes it was told, at most 64 (they lead to all
 * others), or 0 if another process of this node does it; or MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED,
 * _FORKED, _TIMEOUT, _AGENT_REFUSED for what is no record. */
int muster_take_bootstrap_records(muster_ctx_t *context, const void *records, size_t processes);

/* ---------------------------------------------------------------------------------------- view */

/* States of a node. */
enum {
    MUSTER_NODE_UNKNOWN = 0,  /* never heard of, or not yet */
    MUSTER_NODE_ALIVE = 1,
    MUSTER_NODE_DEGRADED = 2, /* alive; some of its rails are silent */
    MUSTER_NODE_SUSPECT = 3,  /* silent; may still refute it */
    MUSTER_NODE_FAILED = 4,   /* confirmed */
    MUSTER_NODE_LEFT = 5      /* left in order */
};

/* States of a rank. */
enum {
    MUSTER_RANK_UNKNOWN = 0,  /* has not connected yet */
    MUSTER_RANK_ALIVE = 1,
    MUSTER_RANK_HUNG = 2,     /* the process is there and does not run, or does not tick */
    MUSTER_RANK_FAILED = 3,   /* confirmed; also every rank of a failed node */
    MUSTER_RANK_LEFT = 4      /* finalized in order */
};

/* "no node", "no rank" in an event. */
#define MUSTER_NONE UINT32_MAX

/* The state of one node or rank: a read from shared memory, no system call. While no agent answers
 * (MUSTER_ERR_AGENT_LOST of muster_next_event) states stay as they were then.
 * Returns one of the states above, or MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED,
 * _NO_SUCH_NODE, _NO_SUCH_RANK. */
int muster_node_state(muster_ctx_t *context, uint32_t node);
int muster_rank_state(muster_ctx_t *context, uint32_t rank);

/* The index of the node that a rank runs on. Returns the index, or as muster_rank_state; a rank
 * that never connected has no node (MUSTER_ERR_NO_SUCH_NODE). Node indices belong to this process:
 * two processes may number the same nodes differently; names are the same everywhere. An agent that was
 * started anew (MUSTER_EVENT_OVERFLOW with MUSTER_CAUSE_NEW_AGENT) may number them anew, too: find them again
 * by name. Where muster_epoch is the same before and after some calls they saw one numbering. */
int muster_rank_node(muster_ctx_t *context, uint32_t rank);

/* The name of a node, cut to fit and always terminated. As snprintf: returns the length of the
 * whole name, so size or more means that it was cut. `buffer` may be NULL if `size` is 0.
 * Errors: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _NO_SUCH_NODE. */
int muster_node_name(muster_ctx_t *context, uint32_t node, char *buffer, size_t size);

/* What a node shares with those that may fail together with it (MUSTER_GROUP: a rack, a switch);
 * "" if nothing was said there. As muster_node_name. */
int muster_node_group(muster_ctx_t *context, uint32_t node, char *buffer, size_t size);

/* How many nodes, and ranks, are known by index (dead ones included): valid indices are 0 to one
 * less. Not the size of the job: ranks are counted as news of them comes, and just after MPI_Init some, or all, are
 * still missing. Await them with muster_wait_ranks. Errors: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_node_count(muster_ctx_t *context);
int muster_rank_count(muster_ctx_t *context);

/* How many of them are in one state. Errors: as above; MUSTER_ERR_ARGUMENT also for a number that
 * is no state. */
int muster_nodes_in_state(muster_ctx_t *context, int state);
int muster_ranks_in_state(muster_ctx_t *context, int state);

/* The rank of this process, and the index of its node. MUSTER_ERR_NO_SUCH_RANK if this process has
 * no rank (no launcher, and none configured). */
int muster_my_rank(muster_ctx_t *context);
int muster_my_node(muster_ctx_t *context);

/* A number that grows with every change of any state, also over an agent that was started anew. If it
 * is the same before and after some calls, no state changed between them. */
int muster_epoch(muster_ctx_t *context, uint64_t *epoch);

/* Copies the states of all nodes, or ranks, by index: a byte each, as they all were at one epoch.
 * Returns how many are known; if that is more than `size`, the rest was left out; bytes beyond them
 * are 0. `states` may be NULL if `size` is 0, `epoch` may be NULL. Errors: MUSTER_ERR_ARGUMENT,
 * _NOT_INITIALIZED, _FORKED; _TIMEOUT if the view changed faster than it could be copied: then what is
 * in `states` is not to be relied on. */
int muster_node_states(muster_ctx_t *context, uint8_t *states, size_t size, uint64_t *epoch);
int muster_rank_states(muster_ctx_t *context, uint8_t *states, size_t size, uint64_t *epoch);

/* The index of the node of this name. Errors: as muster_epoch; MUSTER_ERR_NO_SUCH_NODE. */
int muster_node_find(muster_ctx_t *context, const char *name);

/* The ranks that run on a node, in order. Writes up to `size` of them and returns how many there are.
 * `ranks` may be NULL if `size` is 0. Errors: as muster_node_state. */
int muster_node_ranks(muster_ctx_t *context, uint32_t node, uint32_t *ranks, size_t size);

/* A state as a member of a set of states: MUSTER_STATE(MUSTER_RANK_FAILED) | ... */
#define MUSTER_STATE(state) (1u << (state))

/* Waits until the node, or rank, is in one of these states, for `timeout_ms` at most, on this thread
 * and without taking events. An index that is not known yet is Unknown; the node that has it is waited for by its
 * name, which another agent may give another index. Any number of threads may
 * wait. Without a library thread this dispatches, too. A lost agent ends no wait: another may come.
 * UINT32_MAX is 49 days. Returns the state, or MUSTER_ERR_TIMEOUT, _ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_wait_node(muster_ctx_t *context, uint32_t node, uint32_t states, uint32_t timeout_ms);
int muster_wait_rank(muster_ctx_t *context, uint32_t rank, uint32_t states, uint32_t timeout_ms);

/* Waits until at least `ranks` ranks are in one of these states: "until all are there". Returns how
 * many are, or as muster_wait_rank. */
int muster_wait_ranks(muster_ctx_t *context, uint32_t ranks, uint32_t states, uint32_t timeout_ms);

/* How it is known what state a node is in: lines of text, who said what and when, as `muster why`
 * prints them. As snprintf: returns the length of the whole text. Asks the agent and waits for its
 * answer, 5 s at most. Errors: as muster_node_state; MUSTER_ERR_AGENT_LOST, _TIMEOUT, _SYSTEM, and
 * _REFUSED if too many ask the agent at once. */
int muster_why(muster_ctx_t *context, uint32_t node, char *buffer, size_t size);

/* Promises that this process calls muster_tick at least every `period_ms` milliseconds from now on; 0
 * takes that back. While it breaks the promise it is MUSTER_RANK_HUNG for the whole job, with the
 * cause MUSTER_CAUSE_NO_TICK (or _STOPPED, _STUCK where the kernel says why); its next tick, or the end
 * of the promise, is MUSTER_EVENT_RANK_RESUMED. Nothing else follows. The agent looks four times in the
 * shortest period of its node, every 5 ms at most and every 500 ms at least. A process that a debugger holds, or
 * that its control group has frozen (a suspended job), breaks no promise.
 * Errors of both: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_tick_every(muster_ctx_t *context, uint32_t period_ms);

/* "I make progress": a store to shared memory, no system call. */
int muster_tick(muster_ctx_t *context);

/* Messages of the application stand for heartbeats. The one says that this process has received a message
 * from `rank`: its node lives, as if it had sent one heartbeat. The other, that it has sent one to `rank`: of
 * two heartbeats in a row to that node one is left out. Say both, on both sides, or none: a node that is not
 * told what its ranks receive asks for the heartbeats that it misses, and gets them. Where a node has several rails
 * nothing is left out: heartbeats watch the rails, too. A load and a store, no
 * system call. libmuster-pmpi.so says it for the messages of an MPI program in C: its man page,
 * muster_heard_from(3), has those that are left alone. Errors of both:
 * MUSTER_ERR_NO_SUCH_RANK (nobody knows yet where it runs), _ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_heard_from(muster_ctx_t *context, uint32_t rank);
int muster_sent_to(muster_ctx_t *context, uint32_t rank);

/* A message of the application can carry a heartbeat, with what it says of the others. Before a message to
 * `rank` goes, fill writes up to MUSTER_PIGGYBACK_MAX bytes and returns how many, as a rule 0: there is
 * something in the last quarter of a heartbeat only, once for each node. Send these bytes with the message,
 * and hand them to deliver where it is received, `rank` being its sender there. The heartbeat that went so is
 * not sent. Neither call waits for anything or makes a system call. The bytes prove themselves: cut, damaged or
 * repeated ones do no harm, and of lost ones few are missed, as heartbeats go by themselves again. With age gossip
 * it is the ping to the node that is pinged next, in the last quarter of a cycle. Returns 0 from deliver. Errors of both: MUSTER_ERR_ARGUMENT (also: a
 * `size` below, or a `length` above MUSTER_PIGGYBACK_MAX), _NO_SUCH_RANK, _NOT_INITIALIZED, _FORKED. */
#define MUSTER_PIGGYBACK_MAX 112
int muster_piggyback_fill(muster_ctx_t *context, uint32_t rank, void *buffer, size_t size);
int muster_piggyback_deliver(muster_ctx_t *context, uint32_t rank, const void *buffer, size_t length);

/* "Alive", "Failed" ...; "?" for a number that is no state. Never NULL. */
const char *muster_node_state_name(int state);
const char *muster_rank_state_name(int state);

/* ---------------------------------------------------------------------------------------- PMIx */

/* In a process that a PMIx launcher started the library says in PMIx, and only in this process, what has
 * become of each rank: register a handler (PMIx_Register_event_handler) for one of these codes;
 * PMIX_EVENT_AFFECTED_PROC is the rank. Default handlers, which end jobs, do not hear them. The last word
 * counts: a state that is over before it could be said is not said. A handler runs on a thread of PMIx, which
 * the library may be waiting for: of Muster's calls it may make those that read states or counters, and those
 * that are no system call, and no other. */
enum {
    MUSTER_PMIX_SUSPECT = -3701,     /* its node is silent, not yet confirmed */
    MUSTER_PMIX_DEGRADED = -3702,    /* some of its node's rails are silent */
    MUSTER_PMIX_HUNG = -3703,        /* it is there and does not run, or does not tick */
    MUSTER_PMIX_NODE_FAILED = -3704, /* its node is dead, confirmed */
    MUSTER_PMIX_RANK_FAILED = -3705, /* it died, its node lives */
    MUSTER_PMIX_BACK = -3706         /* what was said is over */
};

/* Counts of this process, by name: "pmix_notified" and "pmix_refused" (events that PMIx took, or did not:
 * it was finalized), "pmix_heard" and "pmix_heard_dropped" (ends of ranks that the launcher told of),
 * "agents_found_again". Errors: MUSTER_ERR_ARGUMENT (no such counter),
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
    MUSTER_EVENT_OUTCAST = 12,       /* the others declared this node failed; MPI may be lost */
    MUSTER_EVENT_OVERFLOW = 13,      /* events were lost (taken too late), or the agent was started
                                        anew (MUSTER_CAUSE_NEW_AGENT) and may have given the nodes
                                        other indices: read the states again */
    MUSTER_EVENT_ATTRIBUTE = 14,     /* a watched attribute of the node was written or deleted */
    MUSTER_EVENT_GROUP_FAILED = 15,  /* nodes of one group failed within one window, each of which
                                        was an event before: see muster_event_nodes */
    MUSTER_EVENT_MINORITY = 16,      /* this node is on the smaller side of a split, or more than
                                        half have died; `code` is 1 if verdicts are held */
    MUSTER_EVENT_MAJORITY = 17,      /* that is over */
    MUSTER_EVENT_NODE_REFUSED = 18   /* a node of this job has other settings, so neither listens to the
                                        other; `code` is 1 for another release of Muster (the node has
                                        no name then), 2 heartbeat, 3 deadline, 4 reporters, 5 rules, 6
                                        what a minority does, 7 the engine, 8 the interval of age
                                        gossip, 9 its participants */
};

/* How it is known. */
enum {
    MUSTER_CAUSE_NONE = 0,
    MUSTER_CAUSE_SILENCE = 1,      /* no heartbeat on any rail before the deadline */
    MUSTER_CAUSE_FUTEX = 2,        /* the node's kernel, at once: the process is being torn down */
    MUSTER_CAUSE_PIDFD = 3,        /* the node's kernel: the process has ended */
    MUSTER_CAUSE_CORE_DUMP = 4,    /* the process is writing a core dump: seen when the agent looks, twice a
                                      second; a shorter one is told by its signal */
    MUSTER_CAUSE_STOPPED = 5,      /* the process is stopped by a signal */
    MUSTER_CAUSE_ANNOUNCED = 6,    /* it said so itself */
    MUSTER_CAUSE_UNREACHABLE = 7,  /* the network refuses to reach it */
    MUSTER_CAUSE_TOLD = 8,         /* by the launcher or an administrator */
    MUSTER_CAUSE_NODE_FAILED = 9,  /* its node failed */
    MUSTER_CAUSE_REFUTED = 10,     /* a suspicion was answered */
    MUSTER_CAUSE_JOINED = 11,      /* it is new */
    MUSTER_CAUSE_STUCK = 12,       /* the process does not come back from the kernel */
    MUSTER_CAUSE_NO_TICK = 13,     /* the process does not tick as it promised */
    MUSTER_CAUSE_NEW_AGENT = 14    /* of MUSTER_EVENT_OVERFLOW: the agent was started anew */
};

/* One event. Set struct_size by MUSTER_EVENT_INIT once; the struct may be used again and again. */
typedef struct muster_event {
    size_t struct_size;      /* set by MUSTER_EVENT_INIT */
    uint64_t sequence;       /* the event's number at this node's agent; those between two
                                may be of attributes that this process does not watch */
    uint64_t verdict_ns;     /* when this node's agent knew, CLOCK_MONOTONIC of this node */
    uint64_t delivered_ns;   /* when this call returned it, same clock */
    int32_t kind;            /* MUSTER_EVENT_NODE_UP ... MUSTER_EVENT_NODE_REFUSED */
    int32_t cause;           /* MUSTER_CAUSE_... */
    uint32_t node;           /* index of the node, or MUSTER_NONE */
    uint32_t rank;           /* the rank, or MUSTER_NONE if it concerns the whole node */
    int32_t code;            /* of a failed rank the signal, or minus the exit code; of one that left
                                its exit code; 0 if not known */
    uint32_t silent_us;      /* how long it had been silent, 0 if it was not silence */
    uint32_t reporter_count; /* how many members reported it */
    uint32_t reporters[3];   /* node indices of the first of them, else MUSTER_NONE */
    uint64_t lost;           /* of MUSTER_EVENT_OVERFLOW: events lost, 0 if it cannot be known */
    uint64_t key_hash;       /* of MUSTER_EVENT_ATTRIBUTE: muster_key_hash of the key */
    uint32_t count;          /* of MUSTER_EVENT_GROUP_FAILED: how many nodes failed; of _MINORITY
                                and _MAJORITY: how many are here, this one included */
    uint32_t total;          /* of these: of how many */
} muster_event_t;

#define MUSTER_EVENT_INIT \
    { sizeof(muster_event_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0, 0, 0 }, 0, 0, 0, 0 }

/* A descriptor for poll, select or epoll that is readable while events wait; do not read from it
 * or close it. The same for the life of the context.
 * Errors: MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED. */
int muster_get_fd(muster_ctx_t *context);

/* Takes the next event. Never blocks. Returns 1 with an event, 0 if there is none, or
 * MUSTER_ERR_ARGUMENT, _STRUCT_SIZE, _NOT_INITIALIZED, _FORKED, _AGENT_LOST. */
int muster_next_event(muster_ctx_t *context, muster_event_t *event);

/* Takes up to `most` events into an array, and waits for the first at most `timeout_ms`; with 0 it never
 * blocks. Set struct_size of the first by MUSTER_EVENT_INIT: all of them have that size. Without a library
 * thread this dispatches, too. With a lost agent it waits for another, up to the deadline. Returns how many
 * were taken, 0 if none came, or as muster_next_event; MUSTER_ERR_ARGUMENT also for room for none. */
int muster_poll_events(muster_ctx_t *context, muster_event_t *events, size_t most,
                       uint32_t timeout_ms);

/* Called with each event, on the thread that called muster_dispatch. It may call every function but
 * muster_init, muster_finalize, muster_leave, muster_dispatch and muster_set_callback (MUSTER_ERR_BUSY). Its
 * context and event are valid until it returns, and it must return: no exception, no longjmp out of it. */
typedef void (*muster_event_fn)(muster_ctx_t *context, const muster_event_t *event,
                                void *argument);

/* Calls `callback` with each event that waits (at most 1024), in order. Never blocks, but for what
 * the callback does; and with MUSTER_NO_THREAD, when the agent was lost, for the search for another one
 * or its start, which takes timeout_ms at most. Returns the number of events, or as muster_next_event,
 * or MUSTER_ERR_BUSY. */
int muster_dispatch(muster_ctx_t *context, muster_event_fn callback, void *argument);

/* What a callback that is called on a thread of the library has to be: safe there, beside every other
 * thread of the process, at any moment. It calls MPI only where MPI_Init_thread gave
 * MPI_THREAD_MULTIPLE. There is no other level: what needs its own thread uses muster_dispatch. */
enum { MUSTER_CALLBACK_THREAD_SAFE = 1 };

/* From now on `callback` is called with each event as it comes, in order, one at a time, on a thread that
 * the library starts for that, until this is called with NULL (`argument` and `safety` are ignored then) or
 * the last muster_finalize; when these return it has returned, too, and is not called again, and until it has
 * the connection lasts. One that has not returned after 10 s is waited for no longer: these then return
 * MUSTER_ERR_TIMEOUT, having done all else, and what the callback uses has to stay until it returns. While it
 * is set, muster_next_event, muster_poll_events (also one that waits already) and muster_dispatch return
 * MUSTER_ERR_BUSY, and so does this: there is one.
 * What muster_event_fn may call it may. A lost agent is no event; its successor is.
 * Returns 0, or MUSTER_ERR_ARGUMENT (also for any other `safety`), _NOT_INITIALIZED, _FORKED, _BUSY,
 * _CONFIG with MUSTER_NO_THREAD, _SYSTEM; _TIMEOUT if a running callback has not returned for 10 s: it is
 * the last call, and this may be called again. */
int muster_set_callback(muster_ctx_t *context, muster_event_fn callback, void *argument, int safety);

/* The nodes an event is about, by index: those of a MUSTER_EVENT_GROUP_FAILED (until a later one
 * lists them again), else the node it names, if any. Writes up to `size` of them and returns how
 * many there are. `nodes` may be NULL if `size` is 0. Deaths of one group are one event more when at
 * least two, and at least half of those who were there, failed within four deadlines.
 * Errors: MUSTER_ERR_ARGUMENT, _STRUCT_SIZE, _NOT_INITIALIZED, _FORKED. */
int muster_event_nodes(muster_ctx_t *context, const muster_event_t *event, uint32_t *nodes,
                       size_t size);

/* "RANK_FAILED", "NODE_UP" ...; "?" for a number that is no event. Never NULL. */
const char *muster_event_name(int kind);

/* "kernel futex", "silence" ...; "?" for a number that is no cause. Never NULL. */
const char *muster_cause_name(int cause);

/* One line of text: "rank 3 on nodeb FAILED: killed by signal 9 (kernel futex), 0.2 ms", where the
 * time is how long the silence was, or how long ago the agent knew. As snprintf: returns the length
 * of the whole text. Errors: MUSTER_ERR_ARGUMENT, _STRUCT_SIZE, _NOT_INITIALIZED, _FORKED. */
int muster_event_describe(muster_ctx_t *context, const muster_event_t *event, char *buffer,
                          size_t size);

/* ---------------------------------------------------------------------------------- attributes */

/* Each node has a small map of keys and values that its processes write (the last writer of a key
 * wins) and every process of the job reads: a load, a port, a role. What one node writes is seen
 * everywhere in the order of writing. A map lives as long as its node's agent; it is gone with a
 * node that leaves or fails. Keys are texts of 1 to 255 bytes; those that begin with "muster." are
 * Muster's own, and all but MUSTER_KEY_MONITOR are refused. Values are up to 65536 bytes of any kind. All
 * attributes of one node have up to 1 MiB, 64 bytes a key included. Each call asks the agent of this node and
 * waits for its answer: microseconds, with a deadline of 5 s. All return, beside what is said with them:
 * MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _LIMIT, _REFUSED, _AGENT_LOST (then it may or may not have
 * been done, and can be done again), _TIMEOUT (likewise), _SYSTEM. */

/* A node with this attribute, whatever the value, is a monitor: it hears of suspicions and deaths
 * straight from those who found them, not only by way of others. */
#define MUSTER_KEY_MONITOR "muster.monitor"

/* Writes an attribute of this node. `value` may be NULL if `size` is 0.
 * Returns 0, or MUSTER_ERR_OUTCAST if this node is no member any more. */
int muster_publish(muster_ctx_t *context, const char *key, const void *value, size_t size);

/* Deletes an attribute of this node. Returns 1, or 0 if there was none, or MUSTER_ERR_OUTCAST. Where the agent's worker
 * was lost before it had answered and was asked again, 1 says that there was one, or may have been. */
int muster_withdraw(muster_ctx_t *context, const char *key);

/* Copies the value of a node's attribute, cut to fit, as far as it has come here. Returns the
 * length of the whole value, so more than `size` means that it was cut; or MUSTER_ERR_NO_SUCH_KEY,
 * _NO_SUCH_NODE. `buffer` may be NULL if `size` is 0. */
int muster_attribute_get(muster_ctx_t *context, uint32_t node, const char *key, void *buffer,
                         size_t size);

/* From now on every change of this key, on whatever node, is a MUSTER_EVENT_ATTRIBUTE of this
 * process: read the attribute when it comes (changes that follow each other closely are one). What
 * was written before is no event: read once after this call. Up to 256 keys a process.
 * Returns 0. */
int muster_watch(muster_ctx_t *context, const char *key);

/* Takes that back, at once: no event of this key is handed out any more. Returns 1, or 0 if it was not
 * watched. */
int muster_unwatch(muster_ctx_t *context, const char *key);

/* Writes the keys of a node's attributes, in order, each terminated, one behind the other: as many as fit
 * wholly. Returns the length of all, terminators included, so more than `size` means that some are left
 * out; or MUSTER_ERR_NO_SUCH_NODE. `buffer` may be NULL if `size` is 0. If length <= size, to go through
 * them:
 *
 *     for (const char *key = buffer; key < buffer + length; key += strlen(key) + 1)
 */
int muster_attribute_keys(muster_ctx_t *context, uint32_t node, char *buffer, size_t size);

/* The number by which events name a key: the same everywhere, always. 0 for NULL. */
uint64_t muster_key_hash(const char *key);

/* ------------------------------------------------------------------- rails, peers, policy, figures */

/* Asks the agent of this node for something, or has it change something while it runs: what the
 * commands of muster(1) can. `request` is one line:
 *
 *     members | why NAME | stats                          who is known, and counters
 *     rails | rails NET INDEX | nets | policy             what is there, with every figure
 *     peers MOST BEHIND                                   at most so many, behind so many others
 *     explain [FROM] TO                                   which pair a message takes now, and why
 *     relays | policy relay on | policy relay off         what goes through others, and whether it may
 *     export                                              the configuration, as YAML in JSON
 *     rails add NID [partitions=0,1] | rails set NID [partitions=0,1] | rails del NID
 *     limits set NAME=NUMBER ...                          numa_range, sensitivity ...
 *     peers add NIDS | peers del NIDS                     with ranges: 10.0.0.[1-4]@udp0
 *     policy add net=NET [priority=P] [messages=N]        or local=PATTERN ... [remote=PATTERN ...]
 *     policy del NUMBER
 *     stats zero
 *
 * or the line "import" and behind it a whole configuration. The answer, JSON with the name of its
 * schema, is written as by snprintf: cut to fit and terminated, its whole length returned (a change
 * is made even if its answer is cut). `buffer` may be NULL if `size` is 0. A change is made whole or
 * not at all; the words are explained in muster(7) and in the pages of the commands.
 *
 * Returns the length, or MUSTER_ERR_ARGUMENT, _NOT_INITIALIZED, _FORKED, _REFUSED (the reason is in
 * muster_last_error_message), _AGENT_LOST, _TIMEOUT, _SYSTEM (then a change may or may not have been
 * made). Waits at most 5 s. */
int muster_control(muster_ctx_t *context, const char *request, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* MUSTER_H */
