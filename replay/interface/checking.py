"""Replays seconds of a capture on a real storage, to check a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.replays import run, stage
from dxt_replay.traces.errors import ReplayError, TargetError

if TYPE_CHECKING:
    from dxt_replay.traces.store.reader import Capture

NAME = ".dxt-replay-check-"
"""How the name of the directory of a check begins; a random number follows."""


def replayed_ns(part: Capture, target: Path, choices: Mapping[str, Any]) -> int:
    """Duration of a cold replay of `part` below `target`.

    It reads the twin that is staged there if that has all files. Else it stages a directory of its own, which is
    always removed.
    Raises: TargetError if the files do not fit; ReplayError if operations fail.
    """
    from dxt_replay.replay.calibration.scratch import scratch_below
    from dxt_replay.replay.ranks.stopping import unwind_on_signals

    with unwind_on_signals(), scratch_below(target, NAME, "a check") as scratch:
        twin = target
        if not _is_staged(part, target):
            twin = scratch.path / "twin"
            twin.mkdir()
            stage(part, twin)
        result = run(part, twin, scratch.path / "replay.capture", cold=True, **choices)
    if not result.succeeded:
        raise ReplayError(
            f"the replay for --check below {target} did not do the recorded work: {'; '.join(result.warnings)}"
        )
    return result.tally.last_end_ns


def _is_staged(part: Capture, target: Path) -> bool:
    try:
        planned = stage(part, target, dry_run=True).plan
    except TargetError:
        return False
    return bool(len(planned.already_staged)) and not len(planned.to_write)
