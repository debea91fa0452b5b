/* ports: the lower half of the ranks opens a port and publishes it, the upper half looks it up and connects;
 * twice. With `ports odd` the halves are the even and the odd ranks, so that both first ones can be on one
 * node.
 *
 *   JOINED rank size sum   the communicator of both halves, and the sum of its ranks
 *   DONE rank              after MPI_Finalize
 *
 * `ports spawn`: rank 0 calls MPI_Comm_spawn three times, and prints REFUSED for each error. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    int rank, size;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count > 1 && strcmp(words[1], "spawn") == 0) {
        MPI_Comm children;
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        for (int time = 0; rank == 0 && time < 3; time++) {
            if (MPI_Comm_spawn(words[0], MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &children,
                               MPI_ERRCODES_IGNORE) != MPI_SUCCESS) {
                printf("REFUSED\n");
                fflush(stdout);
            }
        }
        MPI_Finalize();
        return 0;
    }
    int upper = count > 1 ? rank % 2 : rank >= size / 2;
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, upper, rank, &half);
    for (int turn = 0; turn < 2; turn++) {
        char port[MPI_MAX_PORT_NAME] = "", name[16];
        MPI_Comm other, both;
        int number, total, place;
        MPI_Comm_rank(half, &place);
        snprintf(name, sizeof name, "meet%d", turn);
        if (!upper) {
            if (place == 0) {
                MPI_Open_port(MPI_INFO_NULL, port);
                MPI_Publish_name(name, MPI_INFO_NULL, port);
            }
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &other);
            if (place == 0) {
                MPI_Unpublish_name(name, MPI_INFO_NULL, port);
                MPI_Close_port(port);
            }
        } else {
            MPI_Barrier(MPI_COMM_WORLD);
            if (place == 0)
                MPI_Lookup_name(name, MPI_INFO_NULL, port);
            MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &other);
        }
        MPI_Intercomm_merge(other, upper, &both);
        MPI_Comm_size(both, &number);
        MPI_Allreduce(&rank, &total, 1, MPI_INT, MPI_SUM, both);
        printf("JOINED %d %d %d\n", rank, number, total);
        fflush(stdout);
        MPI_Comm_free(&both);
        MPI_Comm_disconnect(&other);
    }
    MPI_Comm_free(&half);
    MPI_Finalize();
    printf("DONE %d\n", rank);
    return 0;
}
