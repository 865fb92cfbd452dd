"""Before each run: checks that the target is staged, resets its files, and makes the output directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replay.plan.chosen_layers import LayerChoice
from replay.run.options import RunOptions
from replay.run.process_files import check_io
from replay.twin.placement import Placement
from replay.twin.stage import check_staged, prepare_run
from traces.errors import UsageError
from traces.store.reader import Capture
from traces.store.writer import begin_capture, check_capture_output, discard_capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What process 0 prepared for all processes.

    `placements`: where each file of the capture is, by file id.
    `working`: directory in which the output is written until it is whole.
    """

    placements: Sequence[Placement]
    working: Path


def prepare(capture: Capture, output: Path, options: RunOptions, layers: LayerChoice) -> Prepared:
    """Check the target, and make a working directory for the output.

    The caller holds the target's lock. Raises: UsageError, CaptureError, TargetError; then nothing is left behind.
    """
    if _same(output, capture.path):
        raise UsageError(f"{output} is the capture to be replayed: give the replay another name")
    check_capture_output(output, force=options.force)
    chunks = layers.chunks if options.api == "hdf5" else None
    placements = check_staged(capture, options.target, options.maps, chunks)
    check_io(options.io, options.target, [placement.path for placement in placements])
    working = begin_capture(output, force=options.force)
    try:
        prepare_run(options.target, placements)
    except BaseException:
        discard_capture(working)
        raise
    return Prepared(placements=placements, working=working)


def _same(output: Path, source: Path) -> bool:
    try:
        return output.samefile(source)
    except OSError:  # it is not there, or cannot be looked at, which `check_capture_output` reports
        return False
