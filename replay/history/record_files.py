"""The records that a user named: files, and folders that hold them among other files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.replay.regression.experiment_record import ExperimentRecord, is_record, read_record
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.text import printable

MOST_RECORDS = 2000
MOST_RUNS = 100_000
"""Records and runs of one history: what a gigabyte of memory holds with ease."""

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecords:
    """`records`: in order of time. `skipped`: names of JSON files of the folders that are not records."""

    records: tuple[ExperimentRecord, ...]
    skipped: tuple[str, ...]


def find_records(places: Sequence[Path]) -> FoundRecords:
    """Every record once. A file must be one; of a folder those files are read that end in .json.

    Raises: UsageError where a place cannot be read, a record is damaged, there is none, or there are too many.
    """
    found: dict[str, ExperimentRecord] = {}
    skipped, runs = [], 0
    for path, given in _files(places):
        key = os.path.realpath(path)
        if key in found:
            continue
        if not given and not is_record(path):
            skipped.append(path.name)
            continue
        found[key] = read_record(path)
        runs += len(found[key].runs)
        if len(found) > MOST_RECORDS or runs > MOST_RUNS:
            raise UsageError(
                f"more than {MOST_RECORDS:,} records, or {MOST_RUNS:,} runs: give the latest ones, by their names"
            )
    if not found:
        named = ", ".join(printable(place) for place in places[:3])
        raise UsageError(f"no record of an experiment in {named}: `dxt-replay regress --record FILE.json` writes one")
    ordered = sorted(found.values(), key=lambda record: (record.start_ns, record.name))
    return FoundRecords(records=tuple(ordered), skipped=tuple(skipped))


def _files(places: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """(file, whether it was given by its name)."""
    for place in places:
        try:
            entries = sorted(os.listdir(place)) if place.is_dir() else None
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {printable(place)}: {getattr(error, 'strerror', error)}") from error
        if entries is None:
            yield place, True
        else:
            yield from (
                (place / name, False) for name in entries if name.endswith(_SUFFIX) and (place / name).is_file()
            )
