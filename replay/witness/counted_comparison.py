"""A replay held against what Darshan counted while it ran, file by file: a witness that knows nothing of the replayer.

Reads, writes, bytes, their sizes and the last byte must be equal. A replay opens a file once more to look at the page
cache, and seeks once more to place a stream; it asks for a file's status by a call that Darshan does not see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.replay.plan.chosen_layers import choose_layers
from dxt_replay.replay.target.data_set import file_use
from dxt_replay.replay.target.placement import parse_map, place
from dxt_replay.replay.witness.replay_logs import AskedFor, Besides, CountedReplay, asked_for, counted_replay
from dxt_replay.replay.witness.tallies import (
    AT_END,
    COLUMNS,
    INTERFACES,
    LAST_BYTES,
    READS,
    SIZES,
    SUMMED,
    WRITES,
    Tally,
    TallyCollector,
    add_rows,
    column,
)
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_bytes, format_count, format_counted

MAX_DIFFERENCES = 20
"""Differences that are reported in full; `differing` counts them all."""

_ADDED = ("opens", "seeks", "syncs")
"""Calls of which a replay may make more than the capture has; syncs where it drops the twin from the page cache."""
_NOT_SEEN = ("stats",)
_TOTALS = ("opens", "seeks", "syncs", "renames", *READS, *WRITES)
_ROW_COLUMNS = ("op", "api", "file_id", "origin", "offset", "length")
_BELOW = INTERFACES.index("POSIX")
_MPI = INTERFACES.index("MPI-IO")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedDifference:
    """One count of one file that is not what the capture asks for."""

    path: str
    interface: str
    what: str
    expected: int
    counted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFile:
    """One file: whether all was `equal`, and what was counted of it by interface, {"POSIX": {"reads": 3, ...}}."""

    path: str
    equal: bool
    expected: dict[str, dict[str, int]]
    counted: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedComparison:
    """What `dxt-replay compare CAPTURE REPLAY.darshan` reports; field names are the JSON keys.

    verdict: exact, differs, or incomplete: they differ, and Darshan ran out of memory for its counts.
    logs: how many logs were read.
    files, equal_files: those that the capture uses, and those of them where every count is equal.
    recorded: totals that Darshan counted in the application, of the same files and interfaces; empty where only a part
        was replayed, or Darshan did not record the capture.
    expected, counted: totals of what the replay issues, and of what Darshan counted in it.
    differing: how many counts differ; `differences` has the first of them.
    added: calls that the replay makes besides, by name. not_seen: calls that Darshan does not see.
    unjudged: files that a library reads in its own requests, of which the capture does not say how many there are.
    strangers: files of a twin that the capture does not have.
    besides: files that are not the twin's.
    """

    headline: str
    verdict: str
    passed: bool
    logs: int
    files: int
    equal_files: int
    recorded: dict[str, int]
    expected: dict[str, int]
    counted: dict[str, int]
    differing: int
    differences: tuple[CountedDifference, ...]
    added: dict[str, int]
    not_seen: dict[str, int]
    unjudged: tuple[str, ...]
    strangers: tuple[str, ...]
    besides: Besides
    warnings: tuple[str, ...]
    by_file: Sequence[CountedFile]

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return dataclasses.asdict(dataclasses.replace(self, by_file=tuple(self.by_file)))


class FileCounts(Sequence[CountedFile]):
    """The files that were used, each made when it is asked for: a million of them would fill gigabytes."""

    def __init__(self, paths: Sequence[str], used: np.ndarray, wrong: np.ndarray, sides: tuple[Tally, Tally]) -> None:
        """`used`, `wrong`: file ids, ascending. `sides`: what is judged of what was expected and counted."""
        self._paths, self._used, self._wrong = paths, used, frozenset(wrong.tolist())
        self._sides = sides
        self._begins = [np.searchsorted(side.file, np.append(used, len(paths))) for side in sides]

    def __len__(self) -> int:
        return len(self._used)

    @overload
    def __getitem__(self, place: int) -> CountedFile: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[CountedFile]: ...
    def __getitem__(self, place: int | slice) -> CountedFile | Sequence[CountedFile]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        file = int(self._used[place])
        place = range(len(self))[place]
        expected, counted = (
            _by_interface(side.where(slice(begins[place], begins[place + 1])))
            for side, begins in zip(self._sides, self._begins, strict=True)
        )
        return CountedFile(path=self._paths[file], equal=file not in self._wrong, expected=expected, counted=counted)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Judged:
    """Which counts are judged. `columns`: bool (interfaces, columns), those that are where nothing else is said; bool
    (files,) each: `hdf5`, read by that library; `mpi`, used through MPI-IO; `at_end`, read there at its end."""

    columns: np.ndarray
    hdf5: np.ndarray
    mpi: np.ndarray
    at_end: np.ndarray

    def looked_at(self, interface: np.ndarray, file: np.ndarray) -> np.ndarray:
        """Of each count (n,), whether any of its file and interface is judged."""
        # What a library makes of its calls is its own matter: below MPI-IO, POSIX counts other requests.
        any_column = np.asarray(self.columns.any(axis=1))
        mask: np.ndarray = any_column[interface] & ~self.hdf5[file] & ~((interface == _BELOW) & self.mpi[file])
        return mask

    def __call__(self, interface: np.ndarray, file: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Of each count (n,), whether it is judged."""
        # Of MPI-IO Darshan counts the bytes that were asked for, not those that came.
        came = (interface == _MPI) & self.at_end[file] & np.isin(columns, _columns(READS[1], *SIZES))
        mask: np.ndarray = self.looked_at(interface, file) & self.columns[interface, columns] & ~came
        return mask

    def of(self, tally: Tally) -> Tally:
        """Those of the counts that are judged."""
        return tally.where(self(tally.interface, tally.file, tally.column))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sides:
    """What was asked for and what was counted, what of it is judged, and the files that are not, bool (files,).

    `whole`: whether all of the capture was replayed, once. `may_be_more`: columns that may be above what was asked for.
    """

    expected: Tally
    counted: Tally
    judged: _Judged
    unjudged: np.ndarray
    whole: bool
    may_be_more: tuple[str, ...]


def compare_counted(source: Capture, logs: Sequence[DarshanLog], maps: Iterable[str] = ()) -> CountedComparison:
    """Hold the logs of a replay against its source.

    `maps`: as for the run, where its command line is not in the logs.
    Raises: UsageError when no file of the capture is in the logs; LogError; CaptureError.
    """
    asked = asked_for(logs)
    capture = part_of(source, asked.part)
    expected, hdf5 = _expected(capture, asked)
    counted = counted_replay(logs, _places(capture, (*asked.maps, *maps)))
    if not len(counted.tally.keys) and len(expected.keys):
        raise UsageError(
            f"{logs[0].path} counted none of the files of {source.named}: it is the log of another capture's replay, "
            "or real data were read, whose place --map PREFIX=DIR gives"
        )
    by_mpi = expected.where(expected.interface == _MPI)
    mpi, at_end = (np.zeros(capture.files.num_rows, dtype=bool) for _ in range(2))
    mpi[by_mpi.file] = True
    at_end[by_mpi.file[by_mpi.column == column(AT_END)]] = True
    mpi_seen = INTERFACES[_MPI] in counted.modules  # a Darshan without MPI does not see its files
    sides = _Sides(
        expected=expected,
        counted=counted.tally,
        judged=_Judged(columns=_judged_columns(asked, mpi_seen=mpi_seen), hdf5=hdf5, mpi=mpi, at_end=at_end),
        unjudged=hdf5 if mpi_seen else hdf5 | mpi,
        whole=asked.part.is_everything and asked.repeat == 1 and asked.api == "auto" and asked.reconstruct,
        may_be_more=_ADDED if asked.cold else _ADDED[:2],
    )
    return _comparison(capture, len(logs), sides, counted)


def _expected(capture: Capture, asked: AskedFor) -> tuple[Tally, np.ndarray]:
    """The tally of what the replay issues; bool (files,), those that the HDF5 library reads."""
    layers = choose_layers(capture, api=asked.api, reconstruct=asked.reconstruct)
    collector = TallyCollector()
    hdf5 = np.zeros(capture.files.num_rows, dtype=bool)
    add_rows(collector, hdf5, capture.operations(columns=list(_ROW_COLUMNS)), layers)
    once = collector.tally()
    return Tally(keys=once.keys, values=once.values * np.where(SUMMED[once.column], asked.repeat, 1)), hdf5


def _judged_columns(asked: AskedFor, *, mpi_seen: bool) -> np.ndarray:
    """As of `_Judged`."""
    judged = np.ones((len(INTERFACES), len(COLUMNS)), dtype=bool)
    judged[:, _columns(*_NOT_SEEN, AT_END)] = False
    judged[_MPI, _columns("opens", "seeks", "renames", *LAST_BYTES)] = False
    judged[_MPI] &= mpi_seen
    if asked.direct:  # requests past the page cache are as long as whole blocks
        judged[_BELOW, _columns(READS[1], WRITES[1], *LAST_BYTES, *SIZES)] = False
    judged[INTERFACES.index("STDIO"), _columns("renames", *SIZES)] = False
    return judged


def _columns(*names: str) -> list[int]:
    return [column(name) for name in names]


def _places(capture: Capture, maps: Iterable[str]) -> dict[bytes, int]:
    """File ids by the path at which a replay finds each file, those of the twin `without_target`."""
    written = frozenset(np.flatnonzero(file_use(capture).written).tolist())
    placements = place(capture.files, b"/", [parse_map(text) for text in maps], written=written)
    return {each.path: each.file_id for each in placements}


def _comparison(capture: Capture, logs: int, sides: _Sides, found: CountedReplay) -> CountedComparison:
    wanted, counted = (sides.judged.of(side) for side in (sides.expected, sides.counted))
    both = Tally(keys=np.union1d(wanted.keys, counted.keys), values=np.empty(0))
    more = counted.values_at(both.keys) - wanted.values_at(both.keys)
    free = np.isin(COLUMNS, sides.may_be_more)
    differs = (more < 0) | ((more != 0) & ~free[both.column])
    used, wrong = np.unique(both.file), np.unique(both.file[differs])
    paths = capture.paths()
    passed = bool(len(used)) and not len(wrong) and not found.strangers
    result = CountedComparison(
        headline="",
        verdict="exact" if passed else "incomplete" if found.incomplete else "differs",
        passed=passed,
        logs=logs,
        files=len(used),
        equal_files=len(used) - len(wrong),
        recorded=_recorded(capture, sides.judged, np.unique(wanted.file)) if sides.whole else {},
        expected=_totals(sides.expected, sides.judged),
        counted=_totals(sides.counted, sides.judged),
        differing=int(differs.sum()),
        differences=_differences(paths, both.keys[differs], wanted, counted),
        added={name: int(np.maximum(more[both.column == column(name)], 0).sum()) for name in _ADDED},
        not_seen={name: int(_values(sides.expected, name).sum()) for name in _NOT_SEEN},
        unjudged=tuple(paths[file] for file in np.flatnonzero(sides.unjudged).tolist()),
        strangers=found.strangers,
        besides=found.besides,
        warnings=found.warnings,
        by_file=FileCounts(paths, used, wrong, (wanted, counted)),
    )
    return dataclasses.replace(result, headline=_headline(result))


def _recorded(capture: Capture, judged: _Judged, used: np.ndarray) -> dict[str, int]:
    """What Darshan counted in the application, of what is judged of the files `used`; empty without counts."""
    totals: dict[str, int] = {}
    for interface, prefix in enumerate(("posix", "mpiio", "stdio")):
        for name in (*READS, *WRITES):
            counts = capture.files[f"{prefix}_{name}"].to_numpy(zero_copy_only=False)[used]
            known = ~np.isnan(counts) & judged(np.full(len(used), interface), used, np.full(len(used), column(name)))
            if known.any():
                totals[name] = totals.get(name, 0) + int(counts[known].sum())
    return totals


def _differences(
    paths: Sequence[str], keys: np.ndarray, wanted: Tally, counted: Tally
) -> tuple[CountedDifference, ...]:
    """The first of the counts at `keys`, file by file."""
    first = Tally(keys=keys[:MAX_DIFFERENCES], values=np.empty(0))
    here, there = (side.where(np.isin(side.keys, first.keys)).values_at(first.keys) for side in (wanted, counted))
    rows = zip(first.file, first.interface, first.column, here, there, strict=True)
    return tuple(
        CountedDifference(
            path=paths[file], interface=INTERFACES[interface], what=COLUMNS[place], expected=asked, counted=found
        )
        for file, interface, place, asked, found in (map(int, row) for row in rows)
    )


def _values(tally: Tally, name: str) -> np.ndarray:
    values: np.ndarray = tally.values[tally.column == column(name)]
    return values


def _totals(tally: Tally, judged: _Judged) -> dict[str, int]:
    """Of the files and interfaces that are looked at."""
    seen = tally.where(judged.looked_at(tally.interface, tally.file))
    return {name: int(_values(seen, name).sum()) for name in _TOTALS}


def _by_interface(counts: Tally) -> dict[str, dict[str, int]]:
    """The counts of one file, by interface."""
    found: dict[str, dict[str, int]] = {}
    for interface, name, value in zip(counts.interface, counts.column, counts.values, strict=True):
        found.setdefault(INTERFACES[interface], {})[COLUMNS[name]] = int(value)
    return found


def _headline(found: CountedComparison) -> str:
    moved = {name: found.expected[name] for name in (*READS, *WRITES)}
    requests = format_count(moved["reads"] + moved["writes"])
    size = format_bytes(moved["bytes_read"] + moved["bytes_written"])
    if found.passed:
        return (
            f"Darshan counted what the capture asks for: {requests} reads and writes of {size} on "
            f"{format_counted(found.files, 'file')}, with every count equal."
        )
    if not found.files:
        return "FAILED: nothing was compared: Darshan sees no file that this replay uses."
    wrong = found.files - found.equal_files
    if not wrong:
        first = f"the replay used {found.strangers[0]}, which the capture does not have"
    else:
        one = found.differences[0]
        first = (
            f"{one.path} has {format_count(one.counted)} {one.what.replace('_', ' ')} at {one.interface} instead of "
            f"{format_count(one.expected)}"
        )
    files = f"{format_count(wrong)} of {format_counted(found.files, 'file')}"
    text = f"FAILED: Darshan counted something else in {files}: {first}."
    if found.verdict == "incomplete":
        text += (
            " It ran out of memory for its counts, so the replay may be exact: set DARSHAN_MODMEM and MAX_RECORDS, as "
            "`dxt-replay record` does."
        )
    return text
