"""Entry of the program `dxt-replay` and of `python -m dxt_replay`. Sets what must be set before other imports."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import resource
import signal
import sys

JOINT_COMMANDS = {"run", "regress"}
"""Commands that several processes of an MPI job run together. Python's own answer to Ctrl-C, an exception, would end
one process and leave another for ever in the start of MPI, where no exception can be raised."""


_LEAST_BYTES = 128 << 20
"""Address space with which NumPy can be imported."""

_NO_MEMORY = (
    "dxt-replay: error: out of memory: this machine has too little for the capture, or a limit (ulimit -v) is set too "
    "low\n"
)


def main() -> int:
    """Run the command line of this process. Returns its exit status."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return _run()
    try:
        if limit < _LEAST_BYTES:
            raise MemoryError  # OpenBLAS would end the process itself
        _reserve_little()
        return _run()
    except Exception as error:
        none_left = "Failed to launch worker thread" in str(error) or getattr(error, "errno", None) == errno.ENOMEM
        if not none_left and not isinstance(error, (ImportError, MemoryError, SyntaxError, SystemError)):
            raise
        os.write(2, _NO_MEMORY.encode())
        os._exit(2)  # freeing modules of which a part is missing was seen to crash


def _reserve_little() -> None:
    """Let libraries reserve no address space that a limit of it counts: with more, they would reserve all there is."""
    import ctypes
    import logging

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # mimalloc reserves 1 GiB where it gets that
    ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX: glibc reserves 128 MiB for each thread
    logging.lastResort = None  # hashlib logs a traceback for each module that found no memory


def _run() -> int:
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if command in JOINT_COMMANDS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `dxt_replay.replay.commands.processes` undoes it
    gc.set_threshold(100_000)  # looking for garbage among what is imported takes a tenth of a short command
    if command != "record":  # its job inherits the environment
        # NumPy would start a thread on every processor, which spins for 50 ms, for matrices that no command has.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dxt_replay.replay.commands.main import main as run_command_line
    from dxt_replay.traces.without_pandas import keep_pandas_out

    keep_pandas_out()
    if command in JOINT_COMMANDS:
        return run_command_line()
    statuses: list[int] = []
    atexit.register(_end, statuses)  # Python calls the first registered function last, without other threads
    statuses.append(run_command_line())
    return statuses[0]


def _end(statuses: list[int]) -> None:
    """End the process. Python would first free all modules, which takes a fifth of the time of a short command.

    Not with MPI, which is finalised later, nor with a preloaded library: Darshan's writes its log at the regular end.
    """
    if statuses and "mpi4py" not in sys.modules and not os.environ.get("LD_PRELOAD"):
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
        os._exit(statuses[0])


if __name__ == "__main__":
    sys.exit(main())
