"""Measures a file system or an object store, so that `simulate` can predict a training on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.calibration.calibration import Calibration
from dxt_replay.replay.options.choices import CalibrateChoices, PathLike
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.replay.ranks.stopping import unwind_on_signals
from dxt_replay.traces.output import check_output, new_file

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes(CalibrateChoices)
def calibrate(
    target: PathLike,
    output: PathLike | None = None,
    *,
    force: bool = False,
    on_progress: Callable[[float, float, str], None] | None = None,
    **choices: Unpack[CalibrateChoices],
) -> Calibration:
    """Measure a file system or an object store with the engine of a replay, for about `minutes`.

        dxt_replay.calibrate("/scratch", "measured.json").model

    `target`: a directory, or an `s3://` URL. `output`: the file of the storage model, for `simulate`; None writes
    no file. `on_progress` gets the seconds passed, the seconds in all, and the current measurement. All that is written
    below `target` is removed again.
    Raises: UsageError for a time that is too short; TargetError for a target or output that cannot be used.
    """
    from dxt_replay.replay.calibration.calibration import calibrate as measure
    from dxt_replay.replay.calibration.calibration import calibrate_objects
    from dxt_replay.replay.target.targets import target_named

    seconds = 60.0 * filled(CalibrateChoices, choices)["minutes"]
    place = None if output is None else Path(output)
    named, report = target_named(target), on_progress or (lambda passed, whole, what: None)
    if place is not None:
        check_output(place, force=force)
    with unwind_on_signals():
        if isinstance(named, str):
            done = calibrate_objects(named, seconds, on_progress=report)
        else:
            done = measure(named, seconds, on_progress=report)
        if place is not None:
            with new_file(place, force=force) as file:
                file.write((json.dumps(done.document(), indent=1, allow_nan=False) + "\n").encode())
    return done
