"""What part of a capture an analysis looks at: paths, ranks, operations, interfaces, a time window, steps. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import pyarrow as pa

from profiler_merge.analysis.interfaces import INTERFACES
from traces.errors import UsageError
from traces.schema import APIS, OPS, SPAN_KINDS, codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Conditions that all have to hold; an empty one lets everything through.

    `paths`: shell patterns of which one has to match the whole path (`*` matches `/`); `exclude`: of which none may.
    `ranks`, `ops` (names of `traces.schema.OPS`), `apis` (POSIX, STDIO, MPIIO, which includes MPIIO_COLL, HDF5): one of
    them. `from_ns` and `until_ns`: an operation belongs to the window in which it starts, so that adjacent windows add
    up. `steps`: (first, last), both included. Raises: UsageError for an unknown name or an empty range.
    """

    paths: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    ops: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()
    from_ns: int | None = None
    until_ns: int | None = None
    steps: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for op in self.ops:
            if op not in OPS:
                raise UsageError(f"there is no operation {op!r}: choose from {', '.join(OPS)}")
        for api in self.apis:
            if api not in APIS:
                raise UsageError(f"there is no interface {api!r}: choose from {', '.join(INTERFACES)}")
        if self.from_ns is not None and self.until_ns is not None and self.until_ns <= self.from_ns:
            raise UsageError("the time window ends before it begins: give a later end")
        if self.steps is not None and self.steps[1] < self.steps[0]:
            raise UsageError(f"steps {self.steps[0]}-{self.steps[1]} are none: give the first one first")

    def excluding(self, globs: Sequence[str]) -> Filters:
        """These filters, which leave out the paths that match `globs` too."""
        return dataclasses.replace(self, exclude=(*self.exclude, *globs)) if globs else self

    @property
    def by_operation(self) -> bool:
        """Whether anything but whole files is left out, so that a file's counters no longer say what is looked at."""
        return bool(self.ranks or self.ops or self.apis or self.steps) or self.windowed

    @property
    def by_path(self) -> bool:
        """Whether any file may be left out."""
        return bool(self.paths or self.exclude)

    @property
    def windowed(self) -> bool:
        """Whether there is a time window."""
        return self.from_ns is not None or self.until_ns is not None

    def files_mask(self, paths: Sequence[str]) -> np.ndarray:
        """bool (files,): which of `paths` are looked at."""
        return np.array([self._path(path) for path in paths], dtype=bool)

    def _path(self, path: str) -> bool:
        wanted = not self.paths or any(fnmatchcase(path, glob) for glob in self.paths)
        return wanted and not any(fnmatchcase(path, glob) for glob in self.exclude)

    def ops_mask(self) -> np.ndarray | None:
        """bool (ops,) by code; None for all."""
        return np.isin(OPS, self.ops) if self.ops else None

    def apis_mask(self) -> np.ndarray | None:
        """bool (apis,) by code; None for all."""
        wanted = {api for name in self.apis for api in INTERFACES.get(name, (name,))}
        return np.isin(APIS, sorted(wanted)) if wanted else None

    def spans(self, spans: pa.Table) -> pa.Table:
        """Rows of a spans table (`SPANS_SCHEMA`) of these ranks, steps and times, cut at the window's ends.

        Steps are not cut but left out where they reach beyond it: a part of a step would look fast.
        """
        rank, step, start, end = (spans[name].to_numpy() for name in ("rank", "step", "start_ns", "end_ns"))
        kept = np.isin(rank, self.ranks) if self.ranks else np.ones(len(rank), dtype=bool)
        if self.steps is not None:
            kept &= (step >= self.steps[0]) & (step <= self.steps[1])
        if self.windowed:
            begin, stop = np.clip(start, self.from_ns, self.until_ns), np.clip(end, self.from_ns, self.until_ns)
            whole = (begin == start) & (stop == end)
            kept &= (stop > begin) & (whole | (codes(spans, "kind") != SPAN_KINDS.index("step")))
            start, end = begin, stop
        if kept.all() and not self.windowed:
            return spans
        columns = {**{name: spans[name] for name in spans.column_names}, "start_ns": start, "end_ns": end}
        return pa.table(columns, schema=spans.schema).filter(pa.array(kept))


EVERYTHING = Filters()
"""No filter."""
