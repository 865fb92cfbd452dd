"""Examines this machine and a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dxt_replay.replay.doctor.check import Diagnosis
    from dxt_replay.replay.options.choices import PathLike


def doctor(directory: PathLike | None = None) -> Diagnosis:
    """Examine this machine, and the file system of a directory: what works, what is missing, and what to do about it.

    Starts processes that load MPI and a tracer, and writes 1 MiB in the directory. Takes some seconds.

        assert dxt_replay.doctor("/scratch/twin").passed

    Raises: UsageError if `directory` is no directory.
    """
    from dxt_replay.replay.doctor.examination import examine

    return examine(None if directory is None else Path(directory))
