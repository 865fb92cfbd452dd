"""The file of a record: what is written is read again; what is damaged, foreign or newer is one clear error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.regress.record import MOST_BYTES, is_record, read_record
from dxt_replay.traces.errors import UsageError
from tests.replay.regress.builder import record, run


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = record(runs=(run("candidate", 0, elapsed_s=3.0, overhead_pct=None), *record().runs))
    place = tmp_path / "a.json"
    place.write_bytes(made.encoded())
    found = read_record(place)
    assert (found, found.name) == (made, "a.json")
    assert [one.metrics["elapsed_s"] for one in found.counted_runs()] == [1.0, 1.01, 0.99]
    assert (found.start_ns, is_record(place)) == (0, True)


def test_both_sides_of_one_target_are_runs_of_it() -> None:
    both = (run("baseline", 1, elapsed_s=1.0), run("candidate", 1, elapsed_s=2.0))
    target = record().targets["candidate"]
    assert len(record(runs=both, targets={"baseline": target, "candidate": target}).counted_runs()) == 2
    other = replace(target, target="/other")
    assert len(record(runs=both, targets={"baseline": other, "candidate": target}).counted_runs()) == 1


def _change(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_change("format", to="something else"), "is not a record of an experiment: give a file"),
        (_change("schema_version", to=3), "this release reads up to 2: update dxt-replay"),
        (_change("schema_version", to="1"), "is damaged: its schema_version"),
        (_change("schema_version", to=True), "is damaged: its schema_version"),
        (_change("runs", to=[]), "it has 0 runs instead of 1 to 10,000"),
        (_change("runs", 0, "metrics", "elapsed_s", to=-1.0), "run 1: a metric that is not a number above 0"),
        (_change("runs", 0, "metrics", "elapsed_s", to=None), "Expected `float`"),
        (_change("runs", 0, "metrics", to={"speed of light": 1.0}), "'?speed of light'? is not a metric"),
        (_change("runs", 0, "side", to="baseline"), "run 1 is of the side 'baseline', which has no target"),
        (_change("runs", 1, "pair", to=1), "run 2 repeats pair 1 of the candidate"),
        (_change("runs", 1, "start_ns", to=-5), "run 2: a number out of range"),
        (_change("runs", 1, "bytes_read", to=1 << 63), "run 2: a number out of range"),
        (_change("runs", 1, "lag_us", to={"p50": 1.0}), "run 2: a percentile is missing"),
        (_change("runs", 1, "whole_s", to=1e300), "run 2: a time that is not a number"),
        (_change("runs", 1, "capture", to="/etc/passwd"), "is damaged"),
        (_change("targets", to={}), "it has no candidate"),
        (_change("targets", "candidate", "options", to="rw"), "Expected `array`"),
        (_change("primary", to="\x1b[2J"), r"\\x1b\[2J"),
        (_change("result", "verdict", to="fine"), "Invalid enum value"),
        (_change("result", "alpha", to=7.0), "its rule is impossible"),
        (_change("seed", to=-1), "a number out of range"),
    ],
)
def test_what_is_wrong_is_one_clear_error(tmp_path: Path, change: Callable[[Any], None], words: str) -> None:
    document = json.loads(record().encoded())
    change(document)
    place = tmp_path / "a.json"
    place.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError, match=words) as error:
        read_record(place)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a record"),
        (b"[" * 100_000, "is not a record"),
        (b"\xff\xfe", "is not a record"),
        (b'{"format": "dxt-replay regress record", "runs": [', "is damaged"),
        (b'{"format": "dxt-replay regress record", "schema_version": 1}', "is damaged"),
        (b'{"format": "dxt-replay regress record", "schema_version": 1e999}', "is damaged"),
        (b" " * (MOST_BYTES + 1), "has more than 64 MiB"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",  # not the 64 MiB
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    place = tmp_path / "a.json"
    place.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_record(place)


def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "absent", "a\0b"):
        with pytest.raises(UsageError, match=r"regular file|cannot read"):
            read_record(tmp_path / name)
