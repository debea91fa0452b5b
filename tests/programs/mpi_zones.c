/* mpi_zones: an MPI program whose ranks print the zones of the job when all nodes of all zones are alive.
 *
 *   ZONES rank own=ZONE ZONE=NODE,NODE ...    the zone of its node, and the nodes of each zone */
#include <mpi.h>
#include <muster.h>
#include <stdint.h>
#include <stdio.h>

enum { LINE = 1024, NODES = 64, WAIT_MS = 60000 };

static muster_ctx_t *context;

static int fail(const char *what)
{
    printf("FAIL %s: %s\n", what, muster_last_error_message());
    fflush(stdout);
    return MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Writes the nodes of a zone when each of them is alive. */
static size_t write_zone(char *line, size_t size, uint32_t zone)
{
    char name[192];
    uint32_t nodes[NODES];
    muster_zone_name(context, zone, name, sizeof name);
    size_t used = (size_t)snprintf(line, size, " %s=", name);
    int count = muster_zone_nodes(context, zone, nodes, NODES);
    for (int place = 0; place < count; place++) {
        if (muster_wait_node(context, nodes[place], MUSTER_STATE(MUSTER_NODE_ALIVE), WAIT_MS) < 0)
            fail("muster_wait_node");
        muster_node_name(context, nodes[place], name, sizeof name);
        used += (size_t)snprintf(line + used, size - used, "%s%s", place ? "," : "", name);
    }
    return used;
}

int main(int argc, char **argv)
{
    char line[LINE], own[192];
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (muster_init(NULL, &context) != MUSTER_OK)
        return fail("muster_init");
    int node = muster_my_node(context);
    if (muster_zone_name(context, (uint32_t)muster_node_zone(context, (uint32_t)node), own, sizeof own) < 0)
        return fail("muster_zone_name");
    size_t used = 0;
    for (int zone = 0; zone < muster_zone_count(context); zone++)
        used += write_zone(line + used, sizeof line - used, (uint32_t)zone);
    printf("ZONES %d own=%s%s\n", rank, own, line);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    muster_finalize(context);
    MPI_Finalize();
    return 0;
}
