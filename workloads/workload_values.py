"""Makes a checked `Workload` from plain YAML values, with notes on the values that it does not follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.consistency import check_consistency
from dxt_replay.workloads.description import Reading, Workload, WorkloadSource
from dxt_replay.workloads.interpolation import MARK
from dxt_replay.workloads.keys import KEYS, NOT_FOLLOWED, SECRET, SPELLINGS, sections_of
from dxt_replay.workloads.note import Note, shown
from dxt_replay.workloads.readings import Given, apply_reading
from dxt_replay.workloads.value_types import TIMES, number

Section = TypeVar("Section")

_WITH_KEYS = frozenset(name.split(".")[0] for name in {*KEYS, *NOT_FOLLOWED} if "." in name)

SECTIONS = _WITH_KEYS | {"data_reader", "framework"}
"""Top-level keys of a description; a document with none of them is not a description."""

_SUBSECTIONS = frozenset({"dataset.hdf5", "model.parallelism", "model.transformer", "output.metric"})
_DEVIATIONS = {f"{name}_stdev": name for name, key in KEYS.items() if key.takes is TIMES}
"""Key of a standard deviation beside a time -> the key of the time."""

_KNOWN = sorted({*KEYS, *NOT_FOLLOWED, *SPELLINGS, *_DEVIATIONS})


def workload_from_values(
    values: Mapping[Any, Any], *, reading: Reading = "documented", source: WorkloadSource | None = None
) -> tuple[Workload, tuple[Note, ...]]:
    """The workload that `values` (sections of keys, as in DLIO's YAML) describes under `reading`, and notes.

    Raises: UsageError for a value that its key cannot have, and for keys that contradict each other.
    """
    raw = dict(_flat(values))
    notes: list[Note] = []
    given = Given()
    for name, value in _times_with_deviation(_one_spelling(raw, reading, notes)).items():
        note = _take(name, value, reading, given)
        notes += [] if note is None else [note]
    notes += apply_reading(given, raw, reading)
    workload = _built(Workload, "", given, reading=reading, source=source or WorkloadSource())
    check_consistency(workload)
    return workload, tuple(notes)


def _flat(values: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """(full name, value) of each key that has a value, in the sections of `keys.py`."""
    for section, keys in values.items():
        name = "reader" if section == "data_reader" else str(section)
        if section == "reader" and values.get("data_reader") is not None:
            raise UsageError("the description has both data_reader and reader: DLIO reads data_reader alone; keep one")
        if name == "model" and isinstance(keys, str):  # DLIO's version 1 and MLPerf Storage v1.0 write it so
            yield "model.name", keys
        elif name not in _WITH_KEYS and not isinstance(keys, Mapping):
            yield name, keys
        elif keys is not None:
            yield from _keys_of(name, keys)


def _keys_of(section: str, keys: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(keys, Mapping):
        raise UsageError(f"{section}: {shown(keys)} is not a section: write its keys below it, indented")
    for key, value in keys.items():
        name = f"{section}.{key}"
        if name in _SUBSECTIONS:
            yield from _keys_of(name, {} if value is None else value)
        elif value is not None:
            yield name.removeprefix("output.") if section == "output.metric" else name, value


def _one_spelling(raw: Mapping[str, Any], reading: Reading, notes: list[Note]) -> dict[str, Any]:
    """`raw` with the documentation's spellings replaced by those of DLIO's code, if these are followed."""
    spelled: dict[str, Any] = {}
    for name, value in raw.items():
        right = SPELLINGS.get(name)
        if right is None:
            spelled[name] = value
        elif reading == "documented" and right not in raw:
            spelled[right] = value
            why = f"as {right}; DLIO's code ignores it since MLPerf Storage v2.0"
            notes.append(Note(key=name, value=shown(value), kind="read as", why=why))
        else:
            why = f"{right} is given too" if right in raw else f"DLIO's code reads {right} alone"
            notes.append(Note(key=name, value=shown(value), kind="without effect", why=why))
    return spelled


def _times_with_deviation(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with each standard deviation moved into the map of its time, where DLIO puts it."""
    merged = {name: value for name, value in values.items() if name not in _DEVIATIONS}
    for name, time in _DEVIATIONS.items():
        if name not in values:
            continue
        deviation = _checked(name, values[name], number(0, 1e9).wanted, number(0, 1e9).convert)
        mean = merged.get(time, 0)
        merged[time] = {**mean, "stdev": deviation} if isinstance(mean, dict) else {"mean": mean, "stdev": deviation}
    return merged


def _take(name: str, value: Any, reading: Reading, given: dict[str, Any]) -> Note | None:
    """Check the value of the key `name` and put it into `given`; returns a note if it is not taken."""
    key = KEYS.get(name)
    if key is not None and reading not in key.dead:
        given[name] = _checked(name, value, key.takes.wanted, key.takes.convert)
        return None
    if key is not None:
        return Note(key=name, value=shown(value), kind="without effect", why=key.dead[reading])
    outer = ".".join(name.split(".")[:2])
    kind, why = NOT_FOLLOWED.get(outer, ("unknown", f"DLIO ignores it{_meant(name)}"))
    if name.startswith("hydra"):
        kind, why = "not I/O", "it changes no request"
    # Storage options hold keys of object stores, which must not appear on a terminal or in a capture.
    return Note(key=name, value="..." if outer == SECRET else shown(value), kind=kind, why=why)


def _meant(name: str) -> str:
    near = get_close_matches(name, _KNOWN, n=1, cutoff=0.8) or [
        known for known in _KNOWN if known.split(".")[-1] == name.split(".")[-1]
    ]
    return f"; did you mean {near[0]}?" if near else ""


def _checked(name: str, value: Any, wanted: str, convert: Any) -> Any:
    if isinstance(value, str) and MARK in value:
        raise UsageError(f"{name}: {shown(value)} refers to what this file does not hold: write the value")
    try:
        return convert(value)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{name}: {shown(value)} is not {wanted}") from error


def _built(section: type[Section], prefix: str, given: Mapping[str, Any], **more: Any) -> Section:
    """The section of the table below `prefix`, built from the given keys; `more`: further fields."""
    inner: dict[str, Any] = {
        name: _built(each, f"{prefix}{name}.", given) for name, each in sections_of(section).items()
    }
    names = [each.name for each in dataclasses.fields(section)]  # type: ignore[arg-type]
    return section(**inner, **{name: given[prefix + name] for name in names if prefix + name in given}, **more)
