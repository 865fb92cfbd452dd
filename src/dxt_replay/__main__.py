"""Entry of the program `dxt-replay` and of `python -m dxt_replay`. Sets what must be set before other imports."""

from __future__ import annotations

import atexit
import gc
import os
import resource
import signal
import sys
from contextlib import suppress

JOINT_COMMANDS = {"run", "regress"}
"""Commands that several processes of an MPI job run together. Python's own answer to Ctrl-C, an exception, would end
one process and leave another for ever in the start of MPI, where no exception can be raised."""


LEAST_BYTES = 352 << 20
"""Address space that the imports of a command take. With less, libraries fail in ways of their own, some by a crash."""


def main() -> int:
    """Run the command line of this process. Returns its exit status, 2 where memory ends while it is imported."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return _main()
    try:
        return _main(limit)
    except (MemoryError, ImportError) as error:
        why = f"out of memory{f' ({error})' if str(error) else ''}".replace("\n", " ")
        print(f"dxt-replay: error: {why}: raise the limit of memory (ulimit -v)", file=sys.stderr)
        return 2


def _main(limit: int | None = None) -> int:
    """`limit`: of address space, in bytes."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if command in JOINT_COMMANDS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `dxt_replay.replay.commands.session` undoes it
    gc.set_threshold(100_000)  # looking for garbage among what is imported takes a tenth of a short command
    if command != "record":  # its job inherits the environment
        # NumPy would start a thread on every processor, which spins for 50 ms, for matrices that no command has.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if limit is not None:
            _spare_memory(limit)
    from dxt_replay.replay.commands.main import main as run_command_line
    from dxt_replay.traces.without_pandas import keep_pandas_out

    keep_pandas_out()
    if command in JOINT_COMMANDS:
        return run_command_line()
    statuses: list[int] = []
    atexit.register(_end, statuses)  # Python calls the first registered function last, without other threads
    statuses.append(run_command_line())
    return statuses[0]


def _spare_memory(limit: int) -> None:
    """Keep allocators from reserving address space (Arrow 1 GiB, the C library 64 MiB a thread) because the limit has
    room for it: with a higher limit, less would be left. Raises: MemoryError if the imports have no room."""
    if limit < LEAST_BYTES:
        raise MemoryError
    import ctypes

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(-8, 2)  # M_ARENA_MAX


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
