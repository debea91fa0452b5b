"""The last rank is killed after a barrier. The others continue without it where MPI supports that: each prints `LEFT rank size`."""
import os
import signal

from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Set_errhandler(MPI.ERRORS_RETURN)
comm.Barrier()
if comm.rank == comm.size - 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        comm.allreduce(1)
except MPI.Exception:
    comm.Revoke()
left = comm.Shrink()
assert left.allreduce(1) == left.size
# One write per line: the ranks share one output.
os.write(1, f"LEFT {comm.rank} {left.size}\n".encode())
