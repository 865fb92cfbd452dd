"""Before each run: checks that the target is staged, resets its files, and makes the output directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dxt_replay.replay.plan.chosen_layers import LayerChoice
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.process_files import check_io
from dxt_replay.replay.target.placement import Placements
from dxt_replay.replay.target.stage import check_staged, prepare_run
from dxt_replay.replay.target.targets import open_target
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.schema import WRITE, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.writer import begin_capture, check_capture_output, discard_capture
from dxt_replay.traces.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The preparations of process 0 for all processes.

    `placements`: place of each file of the capture, by file id.
    `working`: directory in which the output is written until it is whole.
    """

    placements: Placements
    working: Path


def prepare(capture: Capture, output: Path, options: RunOptions, layers: LayerChoice) -> Prepared:
    """Check the target, and make a working directory for the output.

    The caller holds the target's lock.
    Raises: UsageError, CaptureError, TargetError (also for a full disk); then no file is left behind.
    """
    if _same(output, capture.path):
        raise UsageError(f"{output} is the capture to be replayed: give the replay another name")
    check_capture_output(output, force=options.force)
    chunks = layers.chunks if options.api == "hdf5" else None
    placements = check_staged(capture, options.target, options.maps, chunks)
    check_io(options.io, options.target, map(placements.path, range(len(placements))))
    working = begin_capture(output, force=options.force)
    try:
        prepare_run(options.target, placements)
        if options.api != "null":
            _check_room(capture, options.target, placements)
    except BaseException:
        discard_capture(working)
        raise
    return Prepared(placements=placements, working=working)


def _check_room(capture: Capture, target: str | Path, placements: Placements) -> None:
    """Raises: TargetError if the counted writes of the run exceed the free space."""
    with open_target(target) as opened:
        free = opened.room().free_bytes
    if free is None:
        return
    needed = 0
    for file, size in enumerate(_bytes_to_write(capture).tolist()):
        if size and not placements[file].mapped:
            needed += max(size - _bytes_on_disk(placements.path(file)), 0)
    if needed > free:
        raise TargetError(
            f"the run writes {format_bytes(needed)} and {format_bytes(free)} are free on {target}: free space, choose "
            "another --target, replay a part (--ranks, --steps), or nothing but the timing (--api null)"
        )


def _bytes_to_write(capture: Capture) -> np.ndarray:
    """int64 by file: most bytes on disk after its writes. 0 without a counter of all written bytes, because a write far
    behind the end of a file leaves a hole."""
    reach = np.zeros(capture.files.num_rows, dtype=np.int64)
    for rank in capture.ranks:
        used = capture.usage(rank)
        writes = codes(used, "op") == WRITE
        np.maximum.at(reach, used["file_id"].to_numpy()[writes], used["reach"].to_numpy()[writes])
    counted = np.zeros(capture.files.num_rows, dtype=np.int64)
    for name in ("posix_bytes_written", "stdio_bytes_written", "mpiio_bytes_written"):
        np.maximum(counted, capture.files[name].fill_null(0).to_numpy(), out=counted)
    return np.minimum(reach, counted)


def _bytes_on_disk(path: bytes) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def _same(output: Path, source: Path) -> bool:
    try:
        return output.samefile(source)
    except OSError:  # absent or not accessible, which `check_capture_output` reports
        return False
