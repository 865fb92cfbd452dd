"""The options of a merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxt_replay.profiler_merge.darshan.rank_segments import SPILLED_SEGMENTS
from dxt_replay.profiler_merge.large_rank import STRETCH_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """The options of a merge.

    align: auto, anchors, nesting, wall, or seconds as text.
    exclude: globs over whole paths.
    include: globs over whole paths of files that `record` was asked to trace, which a trace of calls leaves out else.
    reconstruct: make the operations that a trace does not hold (`profiler_merge.untraced.reconstruct`).
    inspect: open the recorded HDF5 files and store where their chunks lie.
    inspect_maps: (recorded prefix, directory) pairs that say where those files are now.
    force: replace an earlier capture.
    rank_segments: a rank with more is kept in files and merged in stretches of about `stretch_rows` rows. The rows do
    not depend on either.
    """

    align: str = "auto"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    reconstruct: bool = True
    inspect: bool = False
    inspect_maps: tuple[tuple[bytes, bytes], ...] = ()
    force: bool = False
    rank_segments: int = SPILLED_SEGMENTS
    stretch_rows: int = STRETCH_ROWS

    def repeated(self) -> dict[str, Any]:
        """The options that capture.json repeats."""
        return {"align": self.align, "exclude": list(self.exclude)}


DEFAULTS = MergeOptions()
