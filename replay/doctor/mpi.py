"""Whether MPI works here: its library is loaded in a process of its own, then two processes are started."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable

from dxt_replay.replay.doctor.check import Check, Part, State
from dxt_replay.replay.doctor.child import Ended, run_child, run_python

LIBRARY = """
import json
try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    print(json.dumps({"absent": str(error)}))
else:
    levels = {getattr(MPI, "THREAD_" + name): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    found = " ".join(MPI.Get_library_version().replace(chr(0), "").strip().splitlines()[0].split())
    print(json.dumps({"library": found, "threads": levels[MPI.Query_thread()]}))
"""
SIZE = """
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 0:
    print(MPI.COMM_WORLD.Get_size())
"""
"""The first process of a job prints its size. Where mpiexec belongs to another MPI library, every process is a job of
one. The others are silent, because launchers mix the output of processes even within a line."""

_INSTALL = "pip install 'dxt-replay[mpich]', or load the MPI module of your cluster"
_PROCESSES = 2


def mpi_part(run: Callable[..., Ended] = run_python, start: Callable[..., Ended] = run_child) -> Part:
    """The MPI library with its thread level, and a job of two processes. Replays of one process need no MPI."""
    ended = run(LIBRARY)
    if ended.trouble:
        remedy = "the MPI library does not start here: load the module that mpi4py was built with, or " + _INSTALL
        return Part(name="MPI", checks=(Check(name="library", found=ended.trouble, state=State.FAILED, remedy=remedy),))
    found = json.loads(ended.output.splitlines()[-1])
    if "absent" in found:
        remedy = f"for replays of several processes: {_INSTALL}"
        return Part(
            name="MPI", checks=(Check(name="library", found=found["absent"], state=State.WARNING, remedy=remedy),)
        )
    library = Check(name="library", found=found["library"])
    threads = Check(name="thread level", found=found["threads"])
    return Part(name="MPI", checks=(library, threads, _launched(start)))


def _launched(start: Callable[..., Ended]) -> Check:
    """A job of two processes under the first mpiexec of PATH."""
    program = shutil.which("mpiexec")
    if program is None:
        remedy = "start replays with the launcher of your cluster (srun), or add mpiexec to PATH"
        return Check(name="mpiexec", found="not in PATH", state=State.WARNING, remedy=remedy)
    ended = start([program, "-n", str(_PROCESSES), sys.executable, "-c", SIZE])
    if ended.trouble:
        remedy = "start replays with the launcher of your cluster; login nodes often refuse mpiexec"
        return Check(name="mpiexec", found=f"{program}: {ended.trouble}", state=State.WARNING, remedy=remedy)
    if ended.output.split() != [str(_PROCESSES)]:
        found = f"{program} started {_PROCESSES} processes that are no job of {_PROCESSES} for mpi4py"
        remedy = "use the mpiexec that belongs to mpi4py's MPI library"
        return Check(name="mpiexec", found=found, state=State.FAILED, remedy=remedy)
    return Check(name="mpiexec", found=f"{program}: started {_PROCESSES} processes of one job")
