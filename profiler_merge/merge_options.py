"""The options of a merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxt_replay.profiler_merge.rows import BLOCK_ROWS, MOST_ROWS


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
    memory_rows: a rank with more traced operations is kept in a file and merged in blocks of about `block_rows` rows.
    The rows do not depend on either.
    """

    align: str = "auto"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    reconstruct: bool = True
    inspect: bool = False
    inspect_maps: tuple[tuple[bytes, bytes], ...] = ()
    force: bool = False
    memory_rows: int = MOST_ROWS
    block_rows: int = BLOCK_ROWS

    def repeated(self) -> dict[str, Any]:
        """The options that capture.json repeats."""
        return {"align": self.align, "exclude": list(self.exclude)}


DEFAULTS = MergeOptions()
