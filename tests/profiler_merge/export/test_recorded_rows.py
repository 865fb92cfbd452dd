"""What each format shows of a recorded job is what the rows of its capture hold."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dxt_replay.profiler_merge.export.chrome import write_chrome
from dxt_replay.profiler_merge.export.csv_rows import COLUMNS, write_csv
from dxt_replay.profiler_merge.export.fio import write_fio
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import READ, WRITE, codes
from dxt_replay.traces.store.reader import Capture, open_capture


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    folder, source = tmp_path_factory.mktemp("recorded"), sample("imagenet")
    merge([source.log], source.profiles, folder / "job.capture")
    return open_capture(folder / "job.capture")


def rows_of(capture: Capture) -> list[dict[str, Any]]:
    paths = capture.paths()
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    return [row | {"path": paths[row["file_id"]]} for row in rows]


def test_csv(capture: Capture, tmp_path: Path) -> None:
    write_csv(capture, tmp_path / "x.csv")
    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as file:
        names, *found = csv.reader(file, strict=True)
    assert tuple(names) == COLUMNS
    wanted = [
        (
            row["rank"], row["lane"], row["op"], row["api"], row["path"], row["offset"] if row["offset"] >= 0 else "",
            row["length"], Decimal(row["start_ns"]).scaleb(-9), Decimal(row["end_ns"]).scaleb(-9),
            row["step"] if row["step"] >= 0 else "", row["origin"], "", "", "",
        )
        for row in rows_of(capture)
    ]  # fmt: skip
    numbers = (0, 1, 5, 6, 7, 8, 9)
    assert [
        tuple(Decimal(text) if place in numbers and text else text for place, text in enumerate(row)) for row in found
    ] == wanted


def test_chrome(capture: Capture, tmp_path: Path) -> None:
    write_chrome(capture, tmp_path / "x.json.gz")
    with gzip.open(tmp_path / "x.json.gz", "rt", encoding="ascii") as file:
        events = [event for event in json.load(file, parse_float=Decimal)["traceEvents"] if event["ph"] == "X"]
    operations = [
        (event["pid"], event["name"], event["ts"], event["dur"], tuple(sorted(event["args"].items())))
        for event in events
        if event["cat"] == "io"
    ]
    optional = {"offset": -1, "step": -1, "origin": "traced"}
    wanted = []
    for row in rows_of(capture):
        args = {"file": row["path"], **{name: row[name] for name in ("length", "api")}}
        args |= {name: row[name] for name, absent in optional.items() if row[name] != absent}
        ts, dur = (Decimal(number).scaleb(-3) for number in (row["start_ns"], row["end_ns"] - row["start_ns"]))
        wanted.append((row["rank"], row["op"], ts, dur, tuple(sorted(args.items()))))
    assert Counter(operations) == Counter(wanted)
    spans = Counter(
        (e["pid"], e["cat"], e["name"], e["ts"], e["dur"], *e.get("args", {}).values())
        for e in events
        if e["cat"] != "io"
    )
    assert spans == Counter(
        (
            span["rank"], span["kind"], span["name"] or span["kind"], Decimal(span["start_ns"]).scaleb(-3),
            Decimal(span["end_ns"] - span["start_ns"]).scaleb(-3), *([span["step"]] if span["step"] >= 0 else []),
        )
        for span in capture.spans.to_pylist()
    )  # fmt: skip


def test_fio(capture: Capture, tmp_path: Path) -> None:
    """By the grammar of iologs: a file is added, then opened, used and closed, any number of times."""
    paths = [b"/twin/%d" % number for number in range(capture.files.num_rows)]
    write_fio(capture, tmp_path / "x", paths=paths, replayed=lambda batch: np.isin(codes(batch, "op"), (READ, WRITE)))
    found: Counter[tuple[Any, ...]] = Counter()
    for iolog in (tmp_path / "x").glob("*.iolog"):
        rank, lane = (int(word) for word in iolog.stem.split("-")[1::2])
        version, *lines = iolog.read_text(encoding="ascii").splitlines()
        assert version == "fio version 3 iolog"
        added, opened, before = set(), set(), 1
        for line in lines:
            time, name, action, *numbers = line.split(" ")
            assert int(time) >= before
            before = int(time)
            if action == "add":
                assert not opened
                added.add(name)
            elif action == "open":
                assert name in added - opened
                opened.add(name)
            elif action == "close":
                opened.remove(name)
            else:
                assert name in opened
                file_id = int(name.removeprefix("/twin/"))
                found[(rank, lane, action, file_id, *map(int, numbers), int(time))] += 1
        assert not opened
    assert found == Counter(
        (
            row["rank"], row["lane"], row["op"], row["file_id"], row["offset"], row["length"],
            (row["start_ns"] - capture.time_span_ns[0]) // 1000 + 1,
        )
        for row in rows_of(capture)
        if row["op"] in ("read", "write") and row["length"] and row["offset"] >= 0
    )  # fmt: skip
