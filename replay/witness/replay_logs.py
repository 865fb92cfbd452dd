"""The Darshan logs of a replay: which files are the twin's, what was counted of them, and the options of the run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.replay.target.placement import OWN_ROOT_ID_CHARS, TWIN_ROOT
from dxt_replay.replay.witness.tallies import COLUMNS, INTERFACES, SIZES, Tally, TallyCollector
from dxt_replay.traces.paces import API_CHOICES
from dxt_replay.traces.part import Part

_IN_TWIN = re.compile(rb"/%s(?:-[0-9a-f]{%d})?/" % (TWIN_ROOT.encode(), OWN_ROOT_ID_CHARS))
_ROOT = b"/%s/" % TWIN_ROOT.encode()
_PROGRAM = "dxt-replay"

_COUNTERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "POSIX": {
        "opens": ("OPENS", "-FILENOS", "-DUPS"),
        "reads": ("READS",),
        "writes": ("WRITES",),
        "syncs": ("FSYNCS", "FDSYNCS"),
        "renames": ("RENAME_SOURCES",),
        "stats": ("STATS",),
    },
    "MPI-IO": {
        "opens": ("INDEP_OPENS", "COLL_OPENS"),
        "reads": ("INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS"),
        "writes": ("INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES"),
        "syncs": ("SYNCS",),
    },
    "STDIO": {
        "opens": ("OPENS", "-FDOPENS"),
        "reads": ("READS",),
        "writes": ("WRITES",),
        "syncs": ("FLUSHES",),
    },
}
"""Counters whose sum is a column of a tally; those with a minus are taken off: Darshan adds them to the opens."""
_COMMON: Mapping[str, tuple[str, ...]] = {
    "seeks": ("SEEKS",),
    "bytes_read": ("BYTES_READ",),
    "bytes_written": ("BYTES_WRITTEN",),
    "last_byte_read": ("MAX_BYTE_READ",),
    "last_byte_written": ("MAX_BYTE_WRITTEN",),
    **{name: (name.upper(), re.sub("(READ|WRITE)", r"\1_AGG", name.upper())) for name in SIZES},
}
_DATA = ("bytes_read", "bytes_written", "reads", "writes")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFor:
    """The options of the `dxt-replay run` that made a log, as far as its command line is known."""

    api: str = "auto"
    reconstruct: bool = True
    part: Part = field(default_factory=Part)
    maps: tuple[str, ...] = ()
    repeat: int = 1
    direct: bool = False
    cold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Besides:
    """Files in the logs that are not the twin's: Python's modules, the capture that the replay wrote, terminals."""

    files: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedReplay:
    """What the logs counted.

    tally: of the files whose places were given.
    strangers: paths below the twin that were read or written and are not among them.
    modules: Darshan modules that any log has.
    incomplete: whether Darshan ran out of memory for the counts of any log.
    warnings: of the logs, but for those about its traces, which are not used.
    """

    tally: Tally
    strangers: tuple[str, ...]
    besides: Besides
    modules: frozenset[str]
    incomplete: bool
    warnings: tuple[str, ...]


def open_replay_logs(paths: Iterable[Path]) -> list[DarshanLog] | None:
    """The opened logs if any of them is of a replay, that is, of `dxt-replay run` or with files of a twin; else None.

    Raises: LogError for a log that cannot be read.
    """
    logs = [open_log(path) for path in paths]
    found = any(_words(log) is not None or any(map(_IN_TWIN.search, log.names.values())) for log in logs)
    return logs if found else None


def asked_for(logs: Iterable[DarshanLog]) -> AskedFor:
    """The options of the first command line that is one of `dxt-replay run`. Raises: UsageError for a part."""
    words = next((words for log in logs if (words := _words(log)) is not None), [])
    given: dict[str, list[str]] = {}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            given.setdefault(name, []).append(value if equals else "".join(words[place + 1 : place + 2]))
    last = {name: values[-1] for name, values in given.items()}
    api, repeat = last.get("--api", "auto"), last.get("--repeat", "1")
    return AskedFor(
        api=api if api in API_CHOICES else "auto",
        reconstruct="--no-reconstruct" not in given,
        part=Part.parse(
            ranks=last.get("--ranks"), begin=last.get("--from"), until=last.get("--until"), steps=last.get("--steps")
        ),
        maps=tuple(given.get("--map", ())),
        repeat=int(repeat) if repeat.isdigit() and int(repeat) else 1,
        direct="--direct" in given,
        cold="--cold" in given,
    )


def without_target(path: bytes) -> bytes:
    """The path of a file of a twin as if the target were `/`, whichever root the twin has; other paths as they are."""
    found = _IN_TWIN.search(path)
    return path if found is None else _ROOT + path[found.end() :]


def counted_replay(logs: Sequence[DarshanLog], places: Mapping[bytes, int]) -> CountedReplay:
    """What the logs counted for the files at `places`: file ids by path, those of the twin `without_target`.

    Raises: LogError for damage.
    """
    collector = TallyCollector()
    strangers: set[str] = set()
    others: set[bytes] = set()
    moved = np.zeros(2, dtype=np.int64)
    warnings = []
    for log in logs:
        files = {record: places.get(without_target(name), -1) for record, name in log.names.items()}
        for interface, table in _tables(log):
            file_id = np.array([files.get(int(record), -1) for record in table.record_ids], dtype=np.int64).reshape(-1)
            known = file_id >= 0
            for place, name in enumerate(COLUMNS):
                values = _column(table, INTERFACES[interface], name)
                collector.add(file_id[known], interface, place, values[known])
            data = np.stack([_column(table, INTERFACES[interface], name)[~known] for name in _DATA], axis=1)
            for row, record in enumerate(table.record_ids[~known].tolist()):
                path = log.names.get(record, b"")
                if _IN_TWIN.search(path) is None:
                    others.add(path)
                    moved += data[row, :2]
                elif data[row].any():  # the folders of the twin are opened, too
                    strangers.add(os.fsdecode(path))
        warnings += [text for text in log.warnings if "DXT_" not in text]
    return CountedReplay(
        tally=collector.tally(),
        strangers=tuple(sorted(strangers)),
        besides=Besides(files=len(others), bytes_read=int(moved[0]), bytes_written=int(moved[1])),
        modules=frozenset(name for log in logs for name in log.modules),
        incomplete=any(log.modules[name].partial for log in logs for name in INTERFACES if name in log.modules),
        warnings=tuple(warnings),
    )


def _tables(log: DarshanLog) -> Iterator[tuple[int, CounterTable]]:
    for interface, module in enumerate(INTERFACES):
        table = read_counters(log, module)
        if table is not None:
            yield interface, table


def _column(table: CounterTable, module: str, name: str) -> np.ndarray:
    """A column of a tally, int64 (records,); a counter that the module does not have is 0."""
    prefix = module.replace("-", "")
    values = np.zeros(len(table.record_ids), dtype=np.int64)
    for counter in {**_COMMON, **_COUNTERS[module]}.get(name, ()):
        found = table.counters.get(f"{prefix}_{counter.lstrip('-')}")
        if found is not None:
            values += np.maximum(found, 0) * (-1 if counter.startswith("-") else 1)
    return values


def _words(log: DarshanLog) -> list[str] | None:
    """The words after `dxt-replay run` on a command line; None for another program."""
    words = log.job.exe.split()
    for place, word in enumerate(words[:-1]):
        if word.rsplit("/", 1)[-1] == _PROGRAM and words[place + 1] == "run":
            return words[place + 2 :]
    return None
