/* libmuster-pmpi.so: the messages of an unchanged MPI program replace heartbeats.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Build: mpicc -shared -fPIC -O2 muster_pmpi.c -o libmuster-pmpi.so $(pkg-config --cflags --libs muster)
 * Run:   mpirun -x LD_PRELOAD=/path/libmuster-pmpi.so ./program
 *
 * The library is called in place of MPI, by MPI's profiling interface. MPI_Init connects to Muster, MPI_Finalize
 * leaves. If the program itself connects, both connections are counted. Each message between two ranks that this
 * process has received is reported by muster_heard_from, each that it sends by muster_sent_to: a load and a store
 * each. A message that MPI_Mprobe has found counts as received. Not covered: collective, one-sided and
 * partitioned operations; ranks of another MPI_COMM_WORLD (spawned children); and a program in Fortran if
 * MPI's Fortran functions do not call those of C, as in Open MPI.
 *
 * Functions of newer versions of MPI are included if the MPI that this is compiled with has them.
 *
 * If neither PMIx nor MUSTER_JOB names the job, MPI_Init connects the agents with each other by muster_mpi_init:
 * the library must then be loaded in all processes of the job, or in none. It prints nothing, except its counters
 * at MPI_Finalize with MUSTER_PMPI_STATS=1. */
#include <muster_mpi.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Functions of MPI 4. Open MPI 5 has them, though it reports version 3.1. */
#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
#define HAS_ISENDRECV 1
#endif
/* Functions with 64-bit counts. */
#if MPI_VERSION >= 4
#define HAS_LARGE_COUNTS 1
#endif

static muster_ctx_t *muster;
static int keyval = MPI_KEYVAL_INVALID;
static _Atomic unsigned long heard, sent, untracked;

/* --------------------------------------------- pending receives and persistent requests, by their handle */

#define TABLE_SIZE 4096 /* a power of two; when it is three quarters full, further requests are not followed */

enum kind {
    RECEIVE,            /* is removed from the table when it is complete */
    PERSISTENT_RECEIVE, /* persistent requests stay until they are freed */
    PERSISTENT_SEND
};

static struct {
    pthread_mutex_t lock;
    atomic_int used;
    struct {
        MPI_Request request; /* 0: free */
        MPI_Comm comm;
        enum kind kind;
        int to; /* destination of a send */
    } entries[TABLE_SIZE];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A receive that a thread waits for or tests is removed from the table meanwhile: when it completes, MPI may give
 * its handle to another thread's next receive before the first thread has returned from MPI. */
static struct taken {
    struct taken *next;
    int count;
    MPI_Comm *comms; /* of each request; MPI_COMM_NULL if it is not followed */
    MPI_Comm one;
} *all_taken;

/* ------------------------------------------------------------------ ranks of a communicator in the job */

struct world_ranks {
    int count; /* 0: nothing is reported */
    int ranks[];
};

/* The communicator is freed. Pending receives on it are no longer reported. */
static int forget_ranks(MPI_Comm comm, int key, void *ranks, void *extra)
{
    (void)key, (void)extra;
    pthread_mutex_lock(&table.lock);
    for (int i = 0; i < TABLE_SIZE && table.used > 0; i++)
        if (table.entries[i].request && table.entries[i].comm == comm)
            table.entries[i].comm = MPI_COMM_NULL;
    for (struct taken *taken = all_taken; taken; taken = taken->next)
        for (int i = 0; i < taken->count; i++)
            if (taken->comms[i] == comm)
                taken->comms[i] = MPI_COMM_NULL;
    pthread_mutex_unlock(&table.lock);
    free(ranks);
    return MPI_SUCCESS;
}

static pthread_mutex_t learning = PTHREAD_MUTEX_INITIALIZER;

static struct world_ranks *learn_ranks(MPI_Comm comm)
{
    MPI_Group there, world;
    struct world_ranks *found;
    int inter = 0, size = 0;
    /* On an intercommunicator, ranks are those of the remote group. */
    PMPI_Comm_test_inter(comm, &inter);
    if (inter)
        PMPI_Comm_remote_size(comm, &size);
    else
        PMPI_Comm_size(comm, &size);
    found = malloc(sizeof *found + (size_t)size * 2 * sizeof(int));
    if (!found)
        return NULL;
    found->count = size;
    if (size > 0) {
        int *numbers = found->ranks + size;
        for (int i = 0; i < size; i++)
            numbers[i] = i;
        if (inter)
            PMPI_Comm_remote_group(comm, &there);
        else
            PMPI_Comm_group(comm, &there);
        PMPI_Comm_group(MPI_COMM_WORLD, &world);
        PMPI_Group_translate_ranks(there, size, numbers, world, found->ranks);
        PMPI_Group_free(&there);
        PMPI_Group_free(&world);
    }
    PMPI_Comm_set_attr(comm, keyval, found);
    return found;
}

/* The rank in the job; negative if none is known. */
static int world_rank(MPI_Comm comm, int rank)
{
    struct world_ranks *ranks = NULL;
    int known = 0;
    if (!muster || rank < 0 || comm == MPI_COMM_NULL)
        return -1;
    if (comm == MPI_COMM_WORLD)
        return rank;
    PMPI_Comm_get_attr(comm, keyval, &ranks, &known);
    if (!known) {
        /* Two threads may get here at once. */
        pthread_mutex_lock(&learning);
        PMPI_Comm_get_attr(comm, keyval, &ranks, &known);
        if (!known)
            ranks = learn_ranks(comm);
        pthread_mutex_unlock(&learning);
    }
    return ranks && rank < ranks->count && ranks->ranks[rank] != MPI_UNDEFINED ? ranks->ranks[rank] : -1;
}

static void tell_sent(MPI_Comm comm, int to)
{
    int rank = world_rank(comm, to);
    if (rank >= 0 && muster_sent_to(muster, (uint32_t)rank) == 0)
        sent++;
}

static void tell_heard(MPI_Comm comm, const MPI_Status *status)
{
    int rank = world_rank(comm, status->MPI_SOURCE);
    if (rank >= 0 && muster_heard_from(muster, (uint32_t)rank) == 0)
        heard++;
}

static unsigned place_of(MPI_Request request)
{
    return (unsigned)(((uintptr_t)request * 0x9E3779B97F4A7C15u) >> 40) % TABLE_SIZE;
}

/* Requires the lock. The index of the request, or a free index where it would be. */
static unsigned find(MPI_Request request)
{
    unsigned place = place_of(request);
    while (table.entries[place].request && table.entries[place].request != request)
        place = (place + 1) % TABLE_SIZE;
    return place;
}

/* Requires the lock. */
static void put_in(MPI_Request request, MPI_Comm comm, enum kind kind, int to)
{
    if (table.used < TABLE_SIZE / 4 * 3) {
        unsigned place = find(request);
        table.used += !table.entries[place].request;
        table.entries[place].request = request;
        table.entries[place].comm = comm;
        table.entries[place].kind = kind;
        table.entries[place].to = to;
    } else {
        untracked++;
    }
}

/* Requires the lock. Removes an entry. */
static void take_out(unsigned hole)
{
    if (!table.entries[hole].request)
        return;
    table.used--;
    /* Move up each later entry whose probe sequence passes the hole. */
    for (unsigned next = (hole + 1) % TABLE_SIZE; table.entries[next].request; next = (next + 1) % TABLE_SIZE) {
        unsigned home = place_of(table.entries[next].request);
        if ((next - home) % TABLE_SIZE >= (next - hole) % TABLE_SIZE) {
            table.entries[hole] = table.entries[next];
            hole = next;
        }
    }
    table.entries[hole].request = 0;
}

static void follow(MPI_Request request, MPI_Comm comm, enum kind kind, int to)
{
    world_rank(comm, 0); /* Sets the attribute whose callback reports that the communicator is freed. */
    pthread_mutex_lock(&table.lock);
    put_in(request, comm, kind, to);
    pthread_mutex_unlock(&table.lock);
}

/* Requires the lock. The communicator of a receive that may be complete soon; none if it is not followed. */
static MPI_Comm take_one(MPI_Request request)
{
    unsigned place = find(request);
    MPI_Comm comm = table.entries[place].comm;
    if (!table.entries[place].request || table.entries[place].kind == PERSISTENT_SEND)
        return MPI_COMM_NULL;
    if (table.entries[place].kind == RECEIVE)
        take_out(place);
    return comm;
}

/* Call before MPI may complete these requests. 0 if none of them is followed: then no call after it is needed. */
static int take(struct taken *taken, int count, const MPI_Request requests[])
{
    int found = 0;
    if (count <= 0 || table.used == 0)
        return 0;
    taken->count = count;
    taken->comms = count == 1 ? &taken->one : malloc((size_t)count * sizeof *taken->comms);
    pthread_mutex_lock(&table.lock);
    for (int i = 0; i < count; i++) {
        MPI_Comm comm = requests[i] == MPI_REQUEST_NULL ? MPI_COMM_NULL : take_one(requests[i]);
        if (taken->comms)
            taken->comms[i] = comm;
        else
            untracked += comm != MPI_COMM_NULL;
        found |= comm != MPI_COMM_NULL;
    }
    if (found && taken->comms) {
        taken->next = all_taken;
        all_taken = taken;
    }
    pthread_mutex_unlock(&table.lock);
    if (!found && taken->comms != &taken->one)
        free(taken->comms);
    return found && taken->comms;
}

/* Call after MPI returned. Requests that are not complete are followed again, and have no communicator in `taken`
 * any more. The handle of a persistent request does not change, complete or not. */
static void give_back(struct taken *taken, const MPI_Request requests[])
{
    struct taken **link = &all_taken;
    pthread_mutex_lock(&table.lock);
    while (*link != taken)
        link = &(*link)->next;
    *link = taken->next;
    for (int i = 0; i < taken->count; i++)
        if (taken->comms[i] != MPI_COMM_NULL && requests[i] != MPI_REQUEST_NULL &&
            table.entries[find(requests[i])].request == 0) {
            put_in(requests[i], taken->comms[i], RECEIVE, -1);
            taken->comms[i] = MPI_COMM_NULL;
        }
    pthread_mutex_unlock(&table.lock);
}

static void complete(MPI_Comm comm, const MPI_Status *status)
{
    int cancelled = 0;
    /* A persistent request that was not started is complete at once, with no source. */
    if (comm == MPI_COMM_NULL || status->MPI_SOURCE < 0)
        return;
    PMPI_Test_cancelled(status, &cancelled);
    if (!cancelled)
        tell_heard(comm, status);
}

static void end(struct taken *taken)
{
    if (taken->comms != &taken->one)
        free(taken->comms);
}

/* -------------------------------------------------------------------------------- begin and end */

static int is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

static void begin(void)
{
    int is_named = is_set("PMIX_NAMESPACE") || is_set("MUSTER_JOB");
    if ((is_named ? muster_init(NULL, &muster) : muster_mpi_init(MPI_COMM_WORLD, NULL, &muster)) < 0)
        muster = NULL;
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget_ranks, &keyval, NULL);
}

int MPI_Init(int *argc, char ***argv)
{
    int result = PMPI_Init(argc, argv);
    if (result == MPI_SUCCESS)
        begin();
    return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int result = PMPI_Init_thread(argc, argv, required, provided);
    if (result == MPI_SUCCESS)
        begin();
    return result;
}

int MPI_Finalize(void)
{
    const char *stats = getenv("MUSTER_PMPI_STATS");
    if (stats && *stats == '1')
        fprintf(stderr, "muster-pmpi: %lu heard, %lu sent, %lu requests not followed\n", heard, sent, untracked);
    if (muster)
        muster_finalize(muster);
    muster = NULL;
    return PMPI_Finalize();
}

/* ---------------------------------------------------------------------------------------- sends */

#define SEND(name, count_type)                                                                              \
    int MPI_##name(const void *buffer, count_type count, MPI_Datatype type, int to, int tag, MPI_Comm comm) \
    {                                                                                                       \
        int result = PMPI_##name(buffer, count, type, to, tag, comm);                                       \
        if (result == MPI_SUCCESS)                                                                          \
            tell_sent(comm, to);                                                                            \
        return result;                                                                                      \
    }
#define ISEND(name, count_type)                                                                             \
    int MPI_##name(const void *buffer, count_type count, MPI_Datatype type, int to, int tag, MPI_Comm comm, \
                   MPI_Request *request)                                                                    \
    {                                                                                                       \
        int result = PMPI_##name(buffer, count, type, to, tag, comm, request);                              \
        if (result == MPI_SUCCESS)                                                                          \
            tell_sent(comm, to);                                                                            \
        return result;                                                                                      \
    }
/* A persistent send: reported at each start. */
#define SEND_INIT(name, count_type)                                                                         \
    int MPI_##name(const void *buffer, count_type count, MPI_Datatype type, int to, int tag, MPI_Comm comm, \
                   MPI_Request *request)                                                                    \
    {                                                                                                       \
        int result = PMPI_##name(buffer, count, type, to, tag, comm, request);                              \
        if (result == MPI_SUCCESS && muster)                                                                \
            follow(*request, comm, PERSISTENT_SEND, to);                                                    \
        return result;                                                                                      \
    }

SEND(Send, int)
SEND(Ssend, int)
SEND(Rsend, int)
SEND(Bsend, int)
ISEND(Isend, int)
ISEND(Issend, int)
ISEND(Irsend, int)
ISEND(Ibsend, int)
SEND_INIT(Send_init, int)
SEND_INIT(Ssend_init, int)
SEND_INIT(Rsend_init, int)
SEND_INIT(Bsend_init, int)
#ifdef HAS_LARGE_COUNTS
SEND(Send_c, MPI_Count)
SEND(Ssend_c, MPI_Count)
SEND(Rsend_c, MPI_Count)
SEND(Bsend_c, MPI_Count)
ISEND(Isend_c, MPI_Count)
ISEND(Issend_c, MPI_Count)
ISEND(Irsend_c, MPI_Count)
ISEND(Ibsend_c, MPI_Count)
SEND_INIT(Send_init_c, MPI_Count)
SEND_INIT(Ssend_init_c, MPI_Count)
SEND_INIT(Rsend_init_c, MPI_Count)
SEND_INIT(Bsend_init_c, MPI_Count)
#endif

static void tell_started(MPI_Request request)
{
    MPI_Comm comm = MPI_COMM_NULL;
    int to = -1;
    if (table.used == 0)
        return;
    pthread_mutex_lock(&table.lock);
    unsigned place = find(request);
    if (table.entries[place].request && table.entries[place].kind == PERSISTENT_SEND) {
        comm = table.entries[place].comm;
        to = table.entries[place].to;
    }
    pthread_mutex_unlock(&table.lock);
    tell_sent(comm, to);
}

int MPI_Start(MPI_Request *request)
{
    int result = PMPI_Start(request);
    if (result == MPI_SUCCESS)
        tell_started(*request);
    return result;
}

int MPI_Startall(int count, MPI_Request requests[])
{
    int result = PMPI_Startall(count, requests);
    for (int i = 0; result == MPI_SUCCESS && i < count; i++)
        tell_started(requests[i]);
    return result;
}

/* ------------------------------------------------------------------------------------- receives */

#define RECV(name, count_type)                                                                               \
    int MPI_##name(void *buffer, count_type count, MPI_Datatype type, int from, int tag, MPI_Comm comm,      \
                   MPI_Status *status)                                                                       \
    {                                                                                                        \
        MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;                                 \
        int result = PMPI_##name(buffer, count, type, from, tag, comm, seen);                                \
        if (result == MPI_SUCCESS)                                                                           \
            tell_heard(comm, seen);                                                                          \
        return result;                                                                                       \
    }
#define IRECV(name, count_type, kind)                                                                        \
    int MPI_##name(void *buffer, count_type count, MPI_Datatype type, int from, int tag, MPI_Comm comm,      \
                   MPI_Request *request)                                                                     \
    {                                                                                                        \
        int result = PMPI_##name(buffer, count, type, from, tag, comm, request);                             \
        if (result == MPI_SUCCESS && muster)                                                                 \
            follow(*request, comm, kind, -1);                                                                \
        return result;                                                                                       \
    }
#define SENDRECV(name, count_type)                                                                           \
    int MPI_##name(const void *out, count_type out_count, MPI_Datatype out_type, int to, int out_tag,        \
                   void *in, count_type in_count, MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, \
                   MPI_Status *status)                                                                       \
    {                                                                                                        \
        MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;                                 \
        int result = PMPI_##name(out, out_count, out_type, to, out_tag, in, in_count, in_type, from, in_tag, \
                                 comm, seen);                                                                \
        if (result == MPI_SUCCESS) {                                                                         \
            tell_sent(comm, to);                                                                             \
            tell_heard(comm, seen);                                                                          \
        }                                                                                                    \
        return result;                                                                                       \
    }
#define SENDRECV_REPLACE(name, count_type)                                                                   \
    int MPI_##name(void *buffer, count_type count, MPI_Datatype type, int to, int out_tag, int from,         \
                   int in_tag, MPI_Comm comm, MPI_Status *status)                                            \
    {                                                                                                        \
        MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;                                 \
        int result = PMPI_##name(buffer, count, type, to, out_tag, from, in_tag, comm, seen);                \
        if (result == MPI_SUCCESS) {                                                                         \
            tell_sent(comm, to);                                                                             \
            tell_heard(comm, seen);                                                                          \
        }                                                                                                    \
        return result;                                                                                       \
    }
/* The status of such a request is that of its receive. */
#define ISENDRECV(name, count_type)                                                                          \
    int MPI_##name(const void *out, count_type out_count, MPI_Datatype out_type, int to, int out_tag,        \
                   void *in, count_type in_count, MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, \
                   MPI_Request *request)                                                                     \
    {                                                                                                        \
        int result = PMPI_##name(out, out_count, out_type, to, out_tag, in, in_count, in_type, from, in_tag, \
                                 comm, request);                                                             \
        if (result == MPI_SUCCESS && muster) {                                                               \
            tell_sent(comm, to);                                                                             \
            follow(*request, comm, RECEIVE, -1);                                                             \
        }                                                                                                    \
        return result;                                                                                       \
    }
#define ISENDRECV_REPLACE(name, count_type)                                                                  \
    int MPI_##name(void *buffer, count_type count, MPI_Datatype type, int to, int out_tag, int from,         \
                   int in_tag, MPI_Comm comm, MPI_Request *request)                                          \
    {                                                                                                        \
        int result = PMPI_##name(buffer, count, type, to, out_tag, from, in_tag, comm, request);             \
        if (result == MPI_SUCCESS && muster) {                                                               \
            tell_sent(comm, to);                                                                             \
            follow(*request, comm, RECEIVE, -1);                                                             \
        }                                                                                                    \
        return result;                                                                                       \
    }

RECV(Recv, int)
IRECV(Irecv, int, RECEIVE)
IRECV(Recv_init, int, PERSISTENT_RECEIVE)
SENDRECV(Sendrecv, int)
SENDRECV_REPLACE(Sendrecv_replace, int)
#ifdef HAS_ISENDRECV
ISENDRECV(Isendrecv, int)
ISENDRECV_REPLACE(Isendrecv_replace, int)
#endif
#ifdef HAS_LARGE_COUNTS
RECV(Recv_c, MPI_Count)
IRECV(Irecv_c, MPI_Count, RECEIVE)
IRECV(Recv_init_c, MPI_Count, PERSISTENT_RECEIVE)
SENDRECV(Sendrecv_c, MPI_Count)
SENDRECV_REPLACE(Sendrecv_replace_c, MPI_Count)
ISENDRECV(Isendrecv_c, MPI_Count)
ISENDRECV_REPLACE(Isendrecv_replace_c, MPI_Count)
#endif

/* A message that these have found can be received by no other call, so it counts as received now. Its completion
 * by MPI_Mrecv or MPI_Imrecv is not reported again. */
int MPI_Mprobe(int from, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status)
{
    MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
    int result = PMPI_Mprobe(from, tag, comm, message, seen);
    if (result == MPI_SUCCESS)
        tell_heard(comm, seen);
    return result;
}

int MPI_Improbe(int from, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status)
{
    MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
    int result = PMPI_Improbe(from, tag, comm, flag, message, seen);
    if (result == MPI_SUCCESS && *flag)
        tell_heard(comm, seen);
    return result;
}

/* ---------------------------------------------------------------------------------- completions */

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    struct taken taken;
    MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
    int result;
    if (!take(&taken, 1, request))
        return PMPI_Wait(request, status);
    result = PMPI_Wait(request, seen);
    give_back(&taken, request);
    if (result == MPI_SUCCESS)
        complete(taken.one, seen);
    return result;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    struct taken taken;
    MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
    int result;
    if (!take(&taken, 1, request))
        return PMPI_Test(request, flag, status);
    result = PMPI_Test(request, flag, seen);
    give_back(&taken, request);
    if (result == MPI_SUCCESS && *flag)
        complete(taken.one, seen);
    return result;
}

static int any(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
    struct taken taken;
    MPI_Status own, *seen = status == MPI_STATUS_IGNORE ? &own : status;
    int follows = take(&taken, count, requests);
    int result = flag ? PMPI_Testany(count, requests, index, flag, seen) : PMPI_Waitany(count, requests, index, seen);
    if (!follows)
        return result;
    give_back(&taken, requests);
    if (result == MPI_SUCCESS && (!flag || *flag) && *index != MPI_UNDEFINED)
        complete(taken.comms[*index], seen);
    end(&taken);
    return result;
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
    return any(count, requests, index, NULL, status);
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
    return any(count, requests, index, flag, status);
}

/* Own statuses if the program ignores them; NULL statuses if there is no memory for them. */
static MPI_Status *statuses_for(int count, MPI_Status statuses[], MPI_Status **own)
{
    *own = statuses == MPI_STATUSES_IGNORE ? malloc((size_t)count * sizeof **own) : NULL;
    return *own ? *own : statuses;
}

/* Whether one request of several has completed without an error. */
static int is_well(int result, const MPI_Status statuses[], int index)
{
    if (statuses == MPI_STATUSES_IGNORE)
        return 0;
    return result == MPI_SUCCESS || (result == MPI_ERR_IN_STATUS && statuses[index].MPI_ERROR == MPI_SUCCESS);
}

static int some(int waits, int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
    struct taken taken;
    MPI_Status *own = NULL, *seen = statuses;
    int follows = take(&taken, count, requests);
    if (follows)
        seen = statuses_for(count, statuses, &own);
    int result = waits ? PMPI_Waitsome(count, requests, done, indices, seen)
                       : PMPI_Testsome(count, requests, done, indices, seen);
    if (!follows)
        return result;
    give_back(&taken, requests);
    if ((result == MPI_SUCCESS || result == MPI_ERR_IN_STATUS) && *done != MPI_UNDEFINED)
        for (int i = 0; i < *done; i++)
            if (is_well(result, seen, i))
                complete(taken.comms[indices[i]], &seen[i]);
    free(own);
    end(&taken);
    return result;
}

int MPI_Waitsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
    return some(1, count, requests, done, indices, statuses);
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
    return some(0, count, requests, done, indices, statuses);
}

static int all(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
    struct taken taken;
    MPI_Status *own = NULL, *seen = statuses;
    int follows = take(&taken, count, requests);
    if (follows)
        seen = statuses_for(count, statuses, &own);
    int result = flag ? PMPI_Testall(count, requests, flag, seen) : PMPI_Waitall(count, requests, seen);
    if (!follows)
        return result;
    give_back(&taken, requests);
    for (int i = 0; i < count && (!flag || *flag || result == MPI_ERR_IN_STATUS); i++)
        if (taken.comms[i] != MPI_COMM_NULL && is_well(result, seen, i))
            complete(taken.comms[i], &seen[i]);
    free(own);
    end(&taken);
    return result;
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
    return all(count, requests, NULL, statuses);
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
    return all(count, requests, flag, statuses);
}

/* A freed request is removed, so that it is not taken for the next request with the same handle. */
int MPI_Request_free(MPI_Request *request)
{
    pthread_mutex_lock(&table.lock);
    if (*request != MPI_REQUEST_NULL)
        take_out(find(*request));
    pthread_mutex_unlock(&table.lock);
    return PMPI_Request_free(request);
}
