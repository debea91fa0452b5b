/* places: an MPI program that determines which resources ranks share.
 *
 *   PLACE rank processor node package core    the first processor that it may use, and how many
 *                                             ranks, including itself, share its node, its package, its core */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>

static int sharing(int what)
{
    MPI_Comm part;
    int size;
    MPI_Comm_split_type(MPI_COMM_WORLD, what, 0, MPI_INFO_NULL, &part);
    MPI_Comm_size(part, &size);
    MPI_Comm_free(&part);
    return size;
}

int main(int count, char **words)
{
    cpu_set_t set;
    int rank, processor = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    sched_getaffinity(0, sizeof set, &set);
    while (!CPU_ISSET(processor, &set))
        processor++;
    int node = sharing(MPI_COMM_TYPE_SHARED);
    int package = sharing(OMPI_COMM_TYPE_SOCKET);
    int core = sharing(OMPI_COMM_TYPE_CORE);
    printf("PLACE %d %d %d %d %d\n", rank, processor, node, package, core);
    MPI_Finalize();
    return 0;
}
