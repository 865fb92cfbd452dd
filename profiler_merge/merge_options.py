"""The options of a merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxt_replay.profiler_merge.darshan.rank_segments import SPILLED_SEGMENTS
from dxt_replay.profiler_merge.large_rank import STRETCH_ROWS
from dxt_replay.profiler_merge.untraced.data_rows import RECONSTRUCT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """The options of a merge.

    align: auto, anchors, nesting, wall, or seconds as text.
    exclude: globs over whole paths.
    include: globs over whole paths of files to keep although a trace leaves them out, such as data in /opt.
    skip_damaged: use the readable rest of damaged logs and profiles.
    reconstruct: make the operations that a trace does not hold (`profiler_merge.untraced.reconstruct`).
    reconstruct_limit: the most reads and writes of one process that are made.
    inspect: open the recorded HDF5 files and store where their chunks lie.
    inspect_maps: (recorded prefix, directory) pairs that say where those files are now.
    keep_profiler_files: keep the operations on the files that PyTorch's profiler wrote while it was recorded.
    extend: extend a profile of some steps over the reads of the others (`profiler_merge.unprofiled`).
    force: replace an earlier capture.
    rank_segments: a rank with more is kept in files and merged in stretches of about `stretch_rows` rows. The rows do
    not depend on either.
    """

    align: str = "auto"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    skip_damaged: bool = False
    reconstruct: bool = True
    reconstruct_limit: int = RECONSTRUCT_LIMIT
    inspect: bool = False
    inspect_maps: tuple[tuple[bytes, bytes], ...] = ()
    keep_profiler_files: bool = False
    extend: bool = True
    force: bool = False
    rank_segments: int = SPILLED_SEGMENTS
    stretch_rows: int = STRETCH_ROWS

    def repeated(self) -> dict[str, Any]:
        """The options that capture.json repeats."""
        return {"align": self.align, "exclude": list(self.exclude)}


DEFAULTS = MergeOptions()
