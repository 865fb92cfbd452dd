"""What is found out once for all processes before a run: is the target staged, what is replayed at which layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replay.plan.layers import LayerChoice, choose_layers
from replay.run.options import RunOptions
from replay.run.process_files import check_io
from replay.twin.placement import Placement
from replay.twin.stage import check_staged, prepare_run
from traces.errors import UsageError
from traces.store.reader import Capture
from traces.store.writer import begin_capture, check_capture_output, discard_capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What one process found out for all of them."""

    placements: Sequence[Placement]
    layers: LayerChoice
    working: Path
    begin_ns: int
    end_ns: int


def prepare(capture: Capture, output: Path, options: RunOptions) -> Prepared:
    """Look at the capture and the target, and make a working directory for the output.

    The caller holds the target's lock. Raises: UsageError, CaptureError, TargetError; nothing is left then.
    """
    if _same(output, capture.path):
        raise UsageError(f"{output} is the capture to be replayed: give the replay another name")
    check_capture_output(output, force=options.force)
    layers = choose_layers(capture, api=options.api, reconstruct=options.reconstruct)
    chunks = layers.chunks if options.api == "hdf5" else None
    placements = check_staged(capture, options.target, options.maps, chunks)
    check_io(options.io, options.target, [placement.path for placement in placements])
    begin_ns, end_ns = capture.time_span_ns
    working = begin_capture(output, force=options.force)
    try:
        prepare_run(options.target, placements)
    except BaseException:
        discard_capture(working)
        raise
    return Prepared(placements=placements, layers=layers, working=working, begin_ns=begin_ns, end_ns=end_ns)


def _same(output: Path, source: Path) -> bool:
    try:
        return output.samefile(source)
    except OSError:  # it is not there, or cannot be looked at, which `check_capture_output` reports
        return False
