"""A replay held against what Darshan counted while it ran, file by file: a witness that knows nothing of the replayer.

Reads, writes, bytes, their sizes and the last byte must be equal. A replay opens a file once more to look at the page
cache, and seeks once more to place a stream; it asks for a file's status by a call that Darshan does not see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profiler_merge.darshan.log import DarshanLog
from replay.plan.chosen_layers import choose_layers
from replay.twin.data_set import file_use
from replay.twin.placement import parse_map, place
from replay.witness.replay_logs import AskedFor, Besides, CountedReplay, asked_for, counted_replay
from replay.witness.tallies import (
    AT_END,
    COLUMNS,
    INTERFACES,
    LAST_BYTES,
    READS,
    SIZES,
    SUMMED,
    WRITES,
    add_rows,
    column,
    empty_tally,
)
from traces.errors import UsageError
from traces.store.part_capture import part_of
from traces.store.reader import Capture
from traces.units import format_bytes, format_count, format_counted

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
    by_file: tuple[CountedFile, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sides:
    """Tallies of what was asked for and what was counted; bool of their shape, what is judged; bool by file.

    `whole`: whether all of the capture was replayed, once. `may_be_more`: columns that may be above what was asked for.
    """

    expected: np.ndarray
    counted: np.ndarray
    judged: np.ndarray
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
    expected, judged, unjudged = _expected(capture, asked)
    places = _places(capture, (*asked.maps, *maps))
    counted = counted_replay(logs, places)
    tally = empty_tally(expected.shape[1])
    tally[:, : counted.tally.shape[1]] = counted.tally
    if not tally.any() and expected.any():
        raise UsageError(
            f"{logs[0].path} counted none of the files of {source.named}: it is the log of another capture's replay, "
            "or real data were read, whose place --map PREFIX=DIR gives"
        )
    if INTERFACES[_MPI] not in counted.modules:  # a Darshan without MPI does not see its files
        judged[_MPI] = False
        unjudged |= expected[_MPI].any(axis=1)
    sides = _Sides(
        expected=expected,
        counted=tally,
        judged=judged,
        unjudged=unjudged,
        whole=asked.part.is_everything and asked.repeat == 1 and asked.api == "auto" and asked.reconstruct,
        may_be_more=_ADDED if asked.cold else _ADDED[:2],
    )
    return _comparison(capture, len(logs), sides, counted)


def _expected(capture: Capture, asked: AskedFor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tally of what the replay issues; bool of the same shape, what of it is judged; bool of the unjudged files."""
    layers = choose_layers(capture, api=asked.api, reconstruct=asked.reconstruct)
    expected = empty_tally(capture.files.num_rows)
    hdf5 = np.zeros(capture.files.num_rows, dtype=bool)
    for rank in capture.ranks:
        add_rows(expected, hdf5, capture.operations(rank, columns=list(_ROW_COLUMNS)), layers)
    expected[:, :, SUMMED] *= asked.repeat
    judged = np.ones(expected.shape, dtype=bool)
    judged[:, hdf5] = False
    # What a library makes of its calls is its own matter: below MPI-IO, POSIX counts other requests.
    judged[_BELOW, expected[_MPI].any(axis=1)] = False
    judged[:, :, [column(name) for name in (*_NOT_SEEN, AT_END)]] = False
    # Of MPI-IO Darshan counts the bytes that were asked for, not those that came.
    at_end = np.flatnonzero(expected[_MPI, :, column(AT_END)])
    judged[_MPI, at_end[:, None], [column(name) for name in (READS[1], *SIZES)]] = False
    judged[_MPI, :, [column(name) for name in ("opens", "seeks", "renames", *LAST_BYTES)]] = False
    if asked.direct:  # requests past the page cache are as long as whole blocks
        judged[_BELOW, :, [column(name) for name in (READS[1], WRITES[1], *LAST_BYTES, *SIZES)]] = False
    judged[INTERFACES.index("STDIO"), :, [column(name) for name in ("renames", *SIZES)]] = False
    return expected, judged, hdf5


def _places(capture: Capture, maps: Iterable[str]) -> dict[bytes, int]:
    """File ids by the path at which a replay finds each file, those of the twin `without_target`."""
    written = frozenset(np.flatnonzero(file_use(capture).written).tolist())
    placements = place(capture.files, Path("/"), [parse_map(text) for text in maps], written=written)
    return {each.path: each.file_id for each in placements}


def _comparison(capture: Capture, logs: int, sides: _Sides, found: CountedReplay) -> CountedComparison:
    wanted, counted = (np.where(sides.judged, side, 0) for side in (sides.expected, sides.counted))
    looked_at = sides.judged.any(axis=2, keepdims=True)
    more = counted - wanted
    free = np.isin(COLUMNS, sides.may_be_more)
    differs = (more < 0) | ((more != 0) & ~free)
    used = np.flatnonzero((wanted != 0).any(axis=(0, 2)) | (counted != 0).any(axis=(0, 2)))
    wrong = differs.any(axis=(0, 2))
    paths = capture.paths()
    passed = bool(len(used)) and not differs.any() and not found.strangers
    result = CountedComparison(
        headline="",
        verdict="exact" if passed else "incomplete" if found.incomplete else "differs",
        passed=passed,
        logs=logs,
        files=len(used),
        equal_files=int((~wrong[used]).sum()),
        recorded=_recorded(capture, sides.judged & (wanted != 0).any(axis=(0, 2))[:, None]) if sides.whole else {},
        expected=_totals(np.where(looked_at, sides.expected, 0)),
        counted=_totals(np.where(looked_at, sides.counted, 0)),
        differing=int(differs.sum()),
        differences=_differences(paths, differs, wanted, counted),
        added={name: int(np.maximum(more[:, :, column(name)], 0).sum()) for name in _ADDED},
        not_seen={name: int(sides.expected[:, :, column(name)].sum()) for name in _NOT_SEEN},
        unjudged=tuple(paths[file] for file in np.flatnonzero(sides.unjudged).tolist()),
        strangers=found.strangers,
        besides=found.besides,
        warnings=found.warnings,
        by_file=tuple(
            CountedFile(
                path=paths[file],
                equal=not wrong[file],
                expected=_by_interface(wanted[:, file]),
                counted=_by_interface(counted[:, file]),
            )
            for file in used.tolist()
        ),
    )
    return dataclasses.replace(result, headline=_headline(result))


def _recorded(capture: Capture, judged: np.ndarray) -> dict[str, int]:
    """What Darshan counted in the application, of what is judged; empty where it counted nothing."""
    totals: dict[str, int] = {}
    for interface, prefix in enumerate(("posix", "mpiio", "stdio")):
        for name in (*READS, *WRITES):
            counts = capture.files[f"{prefix}_{name}"].to_numpy(zero_copy_only=False)
            known = ~np.isnan(counts) & judged[interface, :, column(name)]
            if known.any():
                totals[name] = totals.get(name, 0) + int(counts[known].sum())
    return totals


def _differences(
    paths: Sequence[str], differs: np.ndarray, wanted: np.ndarray, counted: np.ndarray
) -> tuple[CountedDifference, ...]:
    """The first of them, file by file."""
    return tuple(
        CountedDifference(
            path=paths[file],
            interface=INTERFACES[interface],
            what=COLUMNS[place],
            expected=int(wanted[interface, file, place]),
            counted=int(counted[interface, file, place]),
        )
        for file, interface, place in np.argwhere(differs.transpose(1, 0, 2))[:MAX_DIFFERENCES].tolist()
    )


def _totals(tally: np.ndarray) -> dict[str, int]:
    return {name: int(tally[:, :, column(name)].sum()) for name in _TOTALS}


def _by_interface(tally: np.ndarray) -> dict[str, dict[str, int]]:
    """The counts of one file that are not 0, by interface."""
    return {
        interface: {name: int(value) for name, value in zip(COLUMNS, row, strict=True) if value}
        for interface, row in zip(INTERFACES, tally, strict=True)
        if row.any()
    }


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
