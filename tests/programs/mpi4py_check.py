"""Point-to-point messages and collectives of mpi4py, of objects and of buffers. Each rank prints `RIGHT rank size`."""
import os
from array import array

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
after, before = (rank + 1) % size, (rank - 1) % size

# Point to point: objects, then buffers, small and large (eager and rendezvous).
assert comm.sendrecv({"from": rank}, dest=after, source=before) == {"from": before}
request = comm.isend(["later", rank], dest=after, tag=7)
assert comm.recv(source=before, tag=7) == ["later", before]
request.wait()
for length in (1, 1 << 18):
    sent, got = array("i", [rank] * length), array("i", [-1] * length)
    comm.Sendrecv(sent, dest=after, recvbuf=got, source=before)
    assert got == array("i", [before] * length)
status = MPI.Status()
if rank == 0:
    seen = {comm.recv(source=MPI.ANY_SOURCE, status=status): status.source for _ in range(size - 1)}
    assert seen == {other: other for other in range(1, size)}
else:
    comm.send(rank, dest=0)

# Collectives: objects.
all_ranks = list(range(size))
assert comm.bcast("word" if rank == 1 else None, root=1) == "word"
assert comm.scatter([10 * one for one in all_ranks] if rank == 0 else None) == 10 * rank
assert comm.gather(rank, root=size - 1) == (all_ranks if rank == size - 1 else None)
assert comm.allgather(rank) == all_ranks
assert comm.alltoall([(rank, one) for one in all_ranks]) == [(one, rank) for one in all_ranks]
assert comm.allreduce(rank, op=MPI.MAX) == size - 1
assert comm.scan(1) == rank + 1
assert comm.exscan(1) == (rank or None)

# Collectives: buffers, and on a part of the ranks.
total, counts = array("d", [0.0] * 1000), array("i", [0] * size)
comm.Allreduce(array("d", [1.0] * 1000), total)
assert total == array("d", [float(size)] * 1000)
comm.Allgather(array("i", [rank]), counts)
assert counts == array("i", all_ranks)
half = comm.Split(rank % 2, rank)
assert half.allreduce(rank) == sum(range(rank % 2, size, 2))
half.Free()
comm.Barrier()
# One write per line: the ranks share one output.
os.write(1, f"RIGHT {rank} {size}\n".encode())
