"""Replays seconds of a capture on a real storage, to check a simulation."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.replays import run, stage, unstage
from dxt_replay.traces.errors import ReplayError, TargetError

if TYPE_CHECKING:
    from dxt_replay.traces.store.reader import Capture

NAME = ".dxt-replay-check-"
"""How the name of the directory of a check begins; a random number follows."""


def replayed_ns(part: Capture, target: str | Path, choices: Mapping[str, Any]) -> int:
    """Duration of a cold replay of `part` below `target`.

    It reads the twin that is staged there if that has all files. Else it stages a directory of its own, which is
    always removed.
    Raises: TargetError if the files do not fit; ReplayError if operations fail.
    """
    from dxt_replay.replay.ranks.stopping import unwind_on_signals

    with unwind_on_signals(), _scratch(target) as (place, output):
        twin = target
        if not _is_staged(part, target):
            twin = place
            stage(part, twin)
        result = run(part, twin, output, **choices)
    if not result.succeeded:
        raise ReplayError(
            f"the replay for --check below {target} did not do the recorded work: {'; '.join(result.warnings)}"
        )
    if result.disturbed:
        raise ReplayError(f"the replay for --check below {target} was {result.disturbed}: check again")
    return result.tally.last_end_ns


@contextmanager
def _scratch(target: str | Path) -> Iterator[tuple[str | Path, Path]]:
    """(Target of a twin, path of a replay): a new directory below the target, or a new prefix and a local directory."""
    from dxt_replay.replay.calibration.scratch import scratch_below
    from dxt_replay.replay.target.targets import open_target, place_below

    if isinstance(target, Path):
        with scratch_below(target, NAME, "a check") as scratch:
            twin = scratch.path / "twin"
            twin.mkdir()
            yield twin, scratch.path / "replay.capture"
        return
    place = place_below(target, f"{NAME}{secrets.token_hex(6)}")
    with TemporaryDirectory(prefix="dxt-replay-check-") as folder:
        try:
            yield place, Path(folder) / "replay.capture"
        finally:
            with open_target(place) as found:
                staged = found.exists
            if staged:
                unstage(place)


def _is_staged(part: Capture, target: str | Path) -> bool:
    try:
        planned = stage(part, target, dry_run=True).plan
    except TargetError:
        return False
    return bool(len(planned.already_staged)) and not len(planned.to_write)
