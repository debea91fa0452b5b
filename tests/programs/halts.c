/* halts: preloaded into a PMIx or MPI program, it stops one rank before one of its fences while the others
 * enter it.
 *
 *   IN rank turn    this rank is about to enter this fence, the first one being 1
 *   AT rank turn    the rank HALTS_RANK has reached its fence HALTS_TURN, and stops before it
 *
 * When the file HALTS_FILE exists the rank kills itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void print_line(const char *word, const char *rank, int turn)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%s %s %d\n", word, rank, turn);
    if (write(1, line, (size_t)length) != length)
        _exit(9);
}

static void enter_fence(void)
{
    static int turn;
    const char *rank = getenv("PMIX_RANK"), *file = getenv("HALTS_FILE");
    turn++;
    if (atoi(rank) != atoi(getenv("HALTS_RANK")) || turn != atoi(getenv("HALTS_TURN")))
        return print_line("IN", rank, turn);
    print_line("AT", rank, turn);
    while (access(file, F_OK) != 0)
        usleep(10000);
    kill(getpid(), SIGKILL);
}

/* One may call the other inside of its library, which does not pass through here. */
pmix_status_t PMIx_Fence(const pmix_proc_t *procs, size_t count, const pmix_info_t *info, size_t infos)
{
    pmix_status_t (*real)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t) = dlsym(RTLD_NEXT, "PMIx_Fence");
    enter_fence();
    return real(procs, count, info, infos);
}

pmix_status_t PMIx_Fence_nb(const pmix_proc_t *procs, size_t count, const pmix_info_t *info, size_t infos,
                            pmix_op_cbfunc_t answer, void *what)
{
    pmix_status_t (*real)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t, pmix_op_cbfunc_t, void *) =
        dlsym(RTLD_NEXT, "PMIx_Fence_nb");
    enter_fence();
    return real(procs, count, info, infos, answer, what);
}
