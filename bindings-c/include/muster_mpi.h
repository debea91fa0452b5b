/* muster_mpi.h - Muster and MPI communicators. Nothing here is in libmuster, which does not depend on MPI:
 * these functions are compiled with your program, against your MPI.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Muster's rank number is the rank in MPI_COMM_WORLD. All functions except muster_mpi_init
 * are local: they may be called after failures, and on a revoked communicator.
 */
#ifndef MUSTER_MPI_H
#define MUSTER_MPI_H

#include <muster.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Generates a name for a job that has none. Private to this file. */
static inline void muster_mpi_job_(char *job, size_t size)
{
    unsigned long long entropy = 0;
    FILE *source = fopen("/dev/urandom", "rb");
    if (source) {
        if (fread(&entropy, sizeof entropy, 1, source) != 1)
            entropy = 0;
        fclose(source);
    }
    snprintf(job, size, "mpi-%lx-%lx-%llx", (unsigned long)time(NULL), (unsigned long)getpid(), entropy);
}

/* As muster_init, for a job whose MPI has no PMIx (MPICH and its derivatives), so that the agents have no
 * other way to find each other. Collective over `comm`, which must have all processes of MPI_COMM_WORLD in
 * their order; call it after MPI_Init. If config->job and MUSTER_JOB are unset and PMIx does not name the job,
 * rank 0 generates a name with random digits: process numbers alone may repeat in containers. `config` may be
 * NULL.
 *
 * A process whose muster_init fails still takes part in the collective calls, so that the other processes do
 * not block; it returns its code. Returns 0, or a code of muster_init, muster_bootstrap_record or
 * muster_take_bootstrap_records; MUSTER_ERR_ARGUMENT if `context` is NULL, or in all processes if `comm` is
 * not such a communicator; MUSTER_ERR_SYSTEM if MPI failed or there is no memory. After an error this process
 * is not attached, and *context is NULL. */
static inline int muster_mpi_init(MPI_Comm comm, const muster_config_t *config, muster_ctx_t **context)
{
    muster_config_t own = MUSTER_CONFIG_INIT;
    muster_ctx_t *connected = NULL;
    char job[64] = "";
    char *records = NULL;
    const char *from_environment = getenv("MUSTER_JOB"), *from_pmix = getenv("PMIX_NAMESPACE");
    int rank = 0, size = 0, same = 0, status, all_ready, taken;

    if (context)
        *context = NULL;
    if (MPI_Comm_compare(comm, MPI_COMM_WORLD, &same) != MPI_SUCCESS)
        return MUSTER_ERR_SYSTEM;
    if (same != MPI_IDENT && same != MPI_CONGRUENT)
        return MUSTER_ERR_ARGUMENT;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (config)
        own = *config;
    if (rank == 0)
        muster_mpi_job_(job, sizeof job);
    if (MPI_Bcast(job, (int)sizeof job, MPI_CHAR, 0, comm) != MPI_SUCCESS)
        return MUSTER_ERR_SYSTEM;
    if (own.struct_size == sizeof own) {
        if (!own.job && !(from_environment && *from_environment) && !(from_pmix && *from_pmix))
            own.job = job;
        if (own.rank == MUSTER_AUTO)
            own.rank = rank;
        if (own.ranks == MUSTER_AUTO)
            own.ranks = size;
    }
    records = (char *)calloc((size_t)size + 1, MUSTER_BOOTSTRAP_RECORD_SIZE);
    status = context ? muster_init(&own, &connected) : MUSTER_ERR_ARGUMENT;
    if (status == MUSTER_OK && records)
        status = muster_bootstrap_record(connected, records + (size_t)size * MUSTER_BOOTSTRAP_RECORD_SIZE,
                             own.timeout_ms ? own.timeout_ms : 10000);
    /* No process enters the allgather if one of them had no memory for it. */
    all_ready = records != NULL;
    if (MPI_Allreduce(MPI_IN_PLACE, &all_ready, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS || !all_ready ||
        MPI_Allgather(records + (size_t)size * MUSTER_BOOTSTRAP_RECORD_SIZE, MUSTER_BOOTSTRAP_RECORD_SIZE, MPI_BYTE,
                      records, MUSTER_BOOTSTRAP_RECORD_SIZE, MPI_BYTE, comm) != MPI_SUCCESS)
        status = status < 0 ? status : MUSTER_ERR_SYSTEM;
    if (status == MUSTER_OK) {
        taken = muster_take_bootstrap_records(connected, records, (size_t)size);
        status = taken < 0 ? taken : MUSTER_OK;
    }
    free(records);
    if (status < 0 && connected) {
        muster_finalize(connected);
        connected = NULL;
    }
    if (context)
        *context = connected;
    return status;
}

/* The group of those ranks of `comm` that are in one of these states, as MUSTER_STATE(...) | ...; the
 * caller frees it with MPI_Group_free. Returns how many they are; *group is MPI_GROUP_EMPTY if none.
 * Ranks that Muster does not know are Unknown. Errors: as muster_rank_state, or MUSTER_ERR_SYSTEM if
 * MPI failed or there is no memory; *group is MPI_GROUP_NULL then. */
static inline int muster_mpi_group(muster_ctx_t *context, MPI_Comm comm, uint32_t states,
                                   MPI_Group *group)
{
    MPI_Group all = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
    int size = 0, known, found = 0, status = MUSTER_ERR_SYSTEM, i;
    int *ranks = NULL, *in_world = NULL;

    if (!group)
        return MUSTER_ERR_ARGUMENT;
    *group = MPI_GROUP_NULL;
    if (MPI_Comm_group(comm, &all) == MPI_SUCCESS &&
        MPI_Comm_group(MPI_COMM_WORLD, &world) == MPI_SUCCESS) {
        MPI_Group_size(all, &size);
        ranks = (int *)malloc(((size_t)size + 1) * sizeof *ranks);
        in_world = (int *)malloc(((size_t)size + 1) * sizeof *in_world);
    }
    if (ranks && in_world) {
        for (i = 0; i < size; i++)
            ranks[i] = i;
        status = muster_rank_count(context);
        if (status >= 0 &&
            MPI_Group_translate_ranks(all, size, ranks, world, in_world) != MPI_SUCCESS)
            status = MUSTER_ERR_SYSTEM;
    }
    if (status >= 0) {
        for (i = 0; i < size; i++) {
            known = in_world[i] == MPI_UNDEFINED ? MUSTER_RANK_UNKNOWN
                                                 : muster_rank_state(context, (uint32_t)in_world[i]);
            if (known < 0)
                known = MUSTER_RANK_UNKNOWN;
            if (states & MUSTER_STATE(known))
                ranks[found++] = i;
        }
        status = MPI_Group_incl(all, found, ranks, group) == MPI_SUCCESS ? found : MUSTER_ERR_SYSTEM;
    }
    free(in_world);
    free(ranks);
    if (world != MPI_GROUP_NULL)
        MPI_Group_free(&world);
    if (all != MPI_GROUP_NULL)
        MPI_Group_free(&all);
    return status;
}

/* The ranks of `comm` that have failed, as a group: as muster_mpi_group. */
static inline int muster_mpi_failed(muster_ctx_t *context, MPI_Comm comm, MPI_Group *failed)
{
    return muster_mpi_group(context, comm, MUSTER_STATE(MUSTER_RANK_FAILED), failed);
}

#ifdef __cplusplus
}
#endif

#endif /* MUSTER_MPI_H */
