"""Compares a replay with Darshan's counts of it, file by file. Darshan is an independent witness.

Reads, writes, bytes, their sizes and the last byte must be equal. A replay opens a file once more to look at the page
cache, and seeks once more to place a stream; it asks for a file's status by a call that Darshan does not see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.replay.plan.chosen_layers import choose_layers
from dxt_replay.replay.target.data_set import file_use
from dxt_replay.replay.target.placement import parse_map, place
from dxt_replay.replay.witness.replay_logs import AskedFor, Besides, asked_for, counted_replay
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
        was replayed, or Darshan did not record the capture. `seeks` include those that have no operation.
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
    by_file: Collection[CountedFile]

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return dataclasses.asdict(dataclasses.replace(self, by_file=tuple(self.by_file)))


class FileCounts(Collection[CountedFile]):
    """The compared files. Each `CountedFile` is made on access, because a million of them would fill gigabytes."""

    def __init__(self, paths: Sequence[str], used: np.ndarray, wrong: np.ndarray, sides: tuple[Tally, Tally]) -> None:
        """`used`, `wrong`: file ids, ascending. `sides`: what is judged of what was expected and counted."""
        self._paths, self._used, self._wrong, self._sides = paths, used, frozenset(wrong.tolist()), sides

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, one: object) -> bool:
        return any(one == each for each in self)

    def __iter__(self) -> Iterator[CountedFile]:
        begins, ends = (
            [np.searchsorted(side.file, self._used, where) for side in self._sides] for where in ("left", "right")
        )
        for number, file in enumerate(self._used.tolist()):
            expected, counted = (
                _by_interface(side.where(slice(begin[number], end[number])))
                for side, begin, end in zip(self._sides, begins, ends, strict=True)
            )
            equal = file not in self._wrong
            yield CountedFile(path=self._paths[file], equal=equal, expected=expected, counted=counted)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Judged:
    """Which counts are judged.

    looked_at: bool (interfaces, files), those of which any count is. columns: bool (interfaces, columns).
    at_end: bool (files,), read through MPI-IO at its end: of MPI-IO Darshan counts the bytes that were asked for, not
    those that came.
    """

    looked_at: np.ndarray
    columns: np.ndarray
    at_end: np.ndarray

    def __call__(self, interface: np.ndarray, file: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Of each count (n,), whether it is judged."""
        came = (interface == _MPI) & self.at_end[file] & np.isin(columns, _columns(READS[1], *SIZES))
        mask: np.ndarray = self.looked_at[interface, file] & self.columns[interface, columns] & ~came
        return mask

    def of(self, tally: Tally) -> Tally:
        """Those of the counts that are judged."""
        return tally.where(self(tally.interface, tally.file, tally.column))

    def totals(self, tally: Tally) -> dict[str, int]:
        """Of the files and interfaces that are looked at."""
        seen = tally.where(self.looked_at[tally.interface, tally.file])
        return {name: seen.total(name) for name in _TOTALS}


def compare_counted(source: Capture, logs: Sequence[DarshanLog], maps: Iterable[str] = ()) -> CountedComparison:
    """Compare the logs of a replay with its source, file by file.

    `maps`: as for the run; needed only if its command line is not in the logs.
    Raises: UsageError when no file of the capture is in the logs; LogError and CaptureError for damage.
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
    judged, unjudged = _judged(asked, expected, hdf5, mpi_seen=INTERFACES[_MPI] in counted.modules)
    wanted, found = judged.of(expected), judged.of(counted.tally)
    both = Tally(keys=np.union1d(wanted.keys, found.keys), values=np.empty(0))
    more = found.values_at(both.keys) - wanted.values_at(both.keys)
    free = np.isin(COLUMNS, _ADDED if asked.cold else _ADDED[:2])
    differs = (more < 0) | ((more != 0) & ~free[both.column])
    used, wrong = np.unique(both.file), np.unique(both.file[differs])
    whole = asked.part.is_everything and asked.repeat == 1 and asked.api == "auto" and asked.reconstruct
    paths = capture.paths()
    passed = bool(len(used)) and not len(wrong) and not counted.strangers
    result = CountedComparison(
        headline="",
        verdict="exact" if passed else "incomplete" if counted.incomplete else "differs",
        passed=passed,
        logs=len(logs),
        files=len(used),
        equal_files=len(used) - len(wrong),
        recorded=_recorded(capture, judged, np.unique(wanted.file)) if whole else {},
        expected=judged.totals(expected),
        counted=judged.totals(counted.tally),
        differing=int(differs.sum()),
        differences=_differences(paths, both.keys[differs], wanted, found),
        added={name: int(np.maximum(more[both.column == column(name)], 0).sum()) for name in _ADDED},
        not_seen={name: expected.total(name) for name in _NOT_SEEN},
        unjudged=tuple(paths[file] for file in np.flatnonzero(unjudged).tolist()),
        strangers=counted.strangers,
        besides=counted.besides,
        warnings=counted.warnings,
        by_file=FileCounts(paths, used, wrong, (wanted, found)),
    )
    return dataclasses.replace(result, headline=_headline(result))


def _expected(capture: Capture, asked: AskedFor) -> tuple[Tally, np.ndarray]:
    """The tally of what the replay issues; bool (files,), those that the HDF5 library reads."""
    layers = choose_layers(capture, api=asked.api, reconstruct=asked.reconstruct)
    collector = TallyCollector()
    hdf5 = np.zeros(capture.files.num_rows, dtype=bool)
    add_rows(collector, hdf5, capture.operations(columns=list(_ROW_COLUMNS)), layers)
    once = collector.tally()
    return Tally(keys=once.keys, values=once.values * np.where(SUMMED[once.column], asked.repeat, 1)), hdf5


def _judged(asked: AskedFor, expected: Tally, hdf5: np.ndarray, *, mpi_seen: bool) -> tuple[_Judged, np.ndarray]:
    """What is judged; bool (files,), those that are not. `mpi_seen`: a Darshan without MPI does not see its files."""
    by_mpi = expected.where(expected.interface == _MPI)
    mpi, at_end = (np.isin(np.arange(len(hdf5)), each.file) for each in (by_mpi, by_mpi.of(AT_END)))
    columns = _judged_columns(asked, mpi_seen=mpi_seen)
    # What a library makes of its calls is its own matter: below MPI-IO, POSIX counts other requests.
    looked_at = np.asarray(columns.any(axis=1))[:, None] & ~hdf5
    looked_at[_BELOW] &= ~mpi
    return _Judged(looked_at=looked_at, columns=columns, at_end=at_end), hdf5 if mpi_seen else hdf5 | mpi


def _judged_columns(asked: AskedFor, *, mpi_seen: bool) -> np.ndarray:
    """The columns of `_Judged`."""
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


def _recorded(capture: Capture, judged: _Judged, used: np.ndarray) -> dict[str, int]:
    """What Darshan counted in the application, of what is judged of the files `used`; empty without counts."""
    totals: dict[str, int] = {}
    for interface, prefix in enumerate(("posix", "mpiio", "stdio")):
        for name in (*READS, *WRITES, *(() if interface == _MPI else ("seeks",))):
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
