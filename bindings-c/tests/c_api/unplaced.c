/* A process without a rank waits for ranks. With the argument "mpich" its environment is that of MPICH's launcher, and
 * the error message names muster_mpi_init; otherwise it does not. Exit code 0 if all checks pass. */
#include <muster.h>
#include <stdio.h>
#include <string.h>

static int expect(int status, int is_mpich)
{
    const char *message = muster_last_error_message();
    int is_named = strstr(message, "muster_mpi_init") != NULL;
    if (status == MUSTER_ERR_TIMEOUT && is_named == is_mpich)
        return 0;
    printf("%d: %s\n", status, message);
    return 1;
}

int main(int count, char **arguments)
{
    int is_mpich = count > 1 && strcmp(arguments[1], "mpich") == 0;
    uint32_t alive = MUSTER_STATE(MUSTER_RANK_ALIVE);
    muster_ctx_t *context = NULL;
    if (muster_init(NULL, &context) != MUSTER_OK) {
        printf("%s\n", muster_last_error_message());
        return 1;
    }
    int failures = expect(muster_wait_ranks(context, 4, alive, 1), is_mpich);
    failures += expect(muster_wait_rank(context, 3, alive, 1), is_mpich);
    return failures || muster_finalize(context) != MUSTER_OK;
}
