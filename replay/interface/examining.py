"""Examines this machine and a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dxt_replay.replay.doctor import Diagnosis
    from dxt_replay.replay.options.choices import PathLike


def doctor(directory: PathLike | None = None) -> Diagnosis:
    """Examine this machine, and a directory or object store: what works, what is missing, and what to do about it.

    Starts processes that load MPI and a tracer, and writes 1 MiB in the directory, or
    as an object below the URL. Takes some seconds.

        assert dxt_replay.doctor("/scratch/twin").passed

    Raises: UsageError if `directory` is neither a directory nor the URL of an object store.
    """
    from dxt_replay.replay.doctor import examine
    from dxt_replay.replay.target.targets import target_named

    return examine(None if directory is None else target_named(directory))
