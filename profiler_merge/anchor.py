"""Anchors: instants that both the Darshan log and the profile record, which fix the offset between their clocks.

`anchor()` needs nothing beyond the standard library; copy this one file beside an application that lacks the rest.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack, suppress

ANNOTATION = "dxt_anchor"
MAGIC = b"DXTANCHR"
RECORD_BYTES = 64
ANCHOR_FILE = re.compile(r"(?:.*/)?dxt-anchor\.(?P<host>.+)\.(?P<pid>\d+)\.bin", re.DOTALL)
"""Matches (`fullmatch`) the recorded path of an anchor file; the groups are the host name and the process id."""

_RECORD = struct.Struct("<8sQQQIi24x")  # magic, i, wall clock in ns (read just before the write), pthread id, pid, rank
RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "HOROVOD_RANK",
    "RANK",
    "SLURM_PROCID",
)
"""Variables in which launchers give a process its rank. Slurm's is last: its batch script has one too."""


class _Files:
    """The open anchor files of this process: directory -> [file descriptor, next sequence number]."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all files. In a forked child they are the parent's, and the child must not write into them."""
        self.lock = threading.Lock()
        self.open: dict[str, list[int]] = {}

    def take(self, directory: str, i: int | None) -> tuple[int, int]:
        """(file descriptor, sequence number) of the next record, or of record `i`."""
        with self.lock:
            if directory not in self.open:
                name = f"dxt-anchor.{socket.gethostname()}.{os.getpid()}.bin"
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self.open[directory] = [os.open(os.path.join(directory, name), flags, 0o644), 0]
            entry = self.open[directory]
            number = entry[1] if i is None else i
            entry[1] = max(entry[1], number + 1)
            return entry[0], number


_files = _Files()
os.register_at_fork(after_in_child=_files.reset)


def anchor(i: int | None = None, *, rank: int | None = None, directory: str | os.PathLike[str] = ".") -> int:
    """Mark this instant in the Darshan log and in the profile; returns the sequence number (the next one by default).

        for _ in range(3):
            anchor()  # after the profiler starts, and again before it stops: the first one is slow

    The file lies in `directory`, which Darshan must not exclude (/tmp is fine, /proc is not). `rank` defaults to the
    launcher's variable, else -1. Thread-safe and fork-safe. Raises: OSError; ValueError for a negative `i`.
    """
    if i is not None and i < 0:
        raise ValueError(f"an anchor's number cannot be negative, and {i} is")
    rank = launcher_rank() if rank is None else rank
    pid = os.getpid()
    descriptor, number = _files.take(os.path.abspath(directory), i)
    with _annotations(number, rank, pid):
        record = _RECORD.pack(MAGIC, number, time.time_ns(), threading.get_ident(), pid, rank)
        os.pwrite(descriptor, record, number * RECORD_BYTES)
    return number


def launcher_rank() -> int:
    """This process's rank from torchrun, the MPI launcher or Slurm; -1 if none of them sets it."""
    # torchrun under srun: the inner launcher decides.
    variables = ("RANK", *RANK_VARIABLES) if "TORCHELASTIC_RUN_ID" in os.environ else RANK_VARIABLES
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return -1


def _annotations(i: int, rank: int, pid: int) -> ExitStack:
    """The annotation of each framework that the application has already imported; imports none."""
    stack = ExitStack()
    # a framework that another thread is still importing, or an unrelated module of that name
    with suppress(AttributeError):
        if (tensorflow := sys.modules.get("tensorflow")) is not None:
            stack.enter_context(tensorflow.profiler.experimental.Trace(ANNOTATION, i=i, rank=rank, pid=pid))
    with suppress(AttributeError):
        if (jax := sys.modules.get("jax")) is not None:
            stack.enter_context(jax.profiler.TraceAnnotation(ANNOTATION, i=i, rank=rank, pid=pid))
    with suppress(AttributeError):
        if (torch := sys.modules.get("torch")) is not None:
            stack.enter_context(torch.profiler.record_function(f"{ANNOTATION}#i={i},rank={rank},pid={pid}#"))
    return stack


def is_anchor_file(path: bytes) -> bool:
    """Whether a recorded path is that of an anchor file."""
    return ANCHOR_FILE.fullmatch(path.decode("utf-8", "replace")) is not None
