"""Measures a file system, so that `simulate` can predict a training on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from dxt_replay.replay.calibration.calibration import Calibration
from dxt_replay.replay.ranks.stopping import unwind_on_signals
from dxt_replay.traces.output import check_output, new_file


def calibrate(
    target: str | PathLike[str],
    output: str | PathLike[str] | None = None,
    *,
    minutes: float = 3.0,
    force: bool = False,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Calibration:
    """Measure the file system of the directory `target` with the engine of a replay, for about `minutes`.

        dxt_replay.calibrate("/scratch", "measured.json").model

    `output`: write the storage model to this file, for `simulate`; None writes no file. `on_progress` gets the seconds
    passed, the seconds in all, and the current measurement. All files written below `target` are removed again.
    Raises: UsageError for a time that is too short; TargetError for a target or output that cannot be used.
    """
    from dxt_replay.replay.calibration.calibration import calibrate as measure

    place = None if output is None else Path(output)
    if place is not None:
        check_output(place, force=force)
    with unwind_on_signals():
        done = measure(Path(target), 60.0 * minutes, on_progress=on_progress or (lambda passed, whole, what: None))
        if place is not None:
            with new_file(place, force=force) as file:
                file.write((json.dumps(done.document(), indent=1, allow_nan=False) + "\n").encode())
    return done
