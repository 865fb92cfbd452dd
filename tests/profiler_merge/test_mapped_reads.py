"""Operations from page faults: by the rules in words, on faults that are made here."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.mapped_reads import (
    FAULT_ROW,
    MAJOR,
    MAPPING,
    MINOR,
    TORCH_MAPPING,
    MappedReads,
    open_before_mapping,
)
from dxt_replay.profiler_merge.rows import rows_of
from dxt_replay.replay.commands.making import merge
from dxt_replay.traces.schema import APIS, OPEN_FLAGS, OPS, RECONSTRUCTED, TRACED, Unseen, codes
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.unseen import unseen_of
from tests.places import recorded

PAGE, WINDOW = 4096, 65536
OPEN, CLOSE, READ = (OPS.index(name) for name in ("open", "close", "read"))


def _faults(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """From (start, end in us, page or -1 for a mapping, thread)."""
    found = np.zeros(len(rows), dtype=FAULT_ROW)
    for row, (start, end, page, tid) in zip(found, rows, strict=True):
        row["start_ns"], row["end_ns"], row["pid"], row["tid"] = 1000 * start, 1000 * end, 7, tid
        row["offset"] = max(page, 0) * PAGE
        row["length"] = 100 * WINDOW if page < 0 else WINDOW - page * PAGE % WINDOW
        row["kind"] = MAPPING if page < 0 else MAJOR if end > start else MINOR
    return found


def _reads(*rows: tuple[int, int, int, int], size: int = 0) -> list[tuple[int, int, int, int]]:
    """(op, offset in pages, length in bytes, end in us) of each operation."""
    found = MappedReads(paths=[b"/a"], sizes=[size], faults=_faults(*rows)).of_process(7)
    return [
        (int(row["op"]), int(row["offset"]) // PAGE, int(row["length"]), int(row["end_ns"]) // 1000) for row in found
    ]


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [
        # A lone fault is a page, and a run reaches to the end of its last window.
        (((0, 1, 5, 7), (100, 102, 900, 7)), 0, [(READ, 5, PAGE, 1), (READ, 900, PAGE, 102)]),
        (
            ((0, 50, 5, 7), (100, 100, 6, 7), (200, 200, 16, 7)), 0,
            [(READ, 5, PAGE, 50), (READ, 6, 10 * PAGE, 100), (READ, 16, WINDOW, 200)],
        ),
        # A run goes back to the page that was used before it.
        (
            ((0, 1, 0, 7), (100, 100, 100, 7), (200, 200, 16, 7), (300, 300, 32, 7), (400, 400, 48, 7)), 0,
            [(READ, 0, PAGE, 1), (READ, 100, PAGE, 100), (READ, 1, 31 * PAGE, 200), (READ, 32, WINDOW, 300),
             (READ, 48, WINDOW, 400)],
        ),
        # Faults in quick succession are one read; threads do not continue each other.
        (((0, 0, 0, 7), (4, 4, 16, 7), (8, 8, 32, 7)), 0, [(READ, 0, 3 * WINDOW, 8)]),
        (((0, 0, 0, 7), (1, 1, 1, 8)), 0, [(READ, 0, PAGE, 0), (READ, 1, PAGE, 1)]),
        # No read reaches beyond the file.
        (((0, 0, 0, 7), (1, 1, 1, 7)), PAGE + 10, [(READ, 0, PAGE + 10, 1)]),
    ],
)  # fmt: skip
def test_faults_become_reads(rows, size, expected) -> None:
    assert _reads(*rows, size=size) == expected


def test_a_mapping_counts_if_it_was_read_and_closes_the_one_before() -> None:
    found = _reads((0, 0, -1, 7), (1, 1, -1, 7), (2, 2, 40, 7), (3, 3, -1, 7), (4, 4, 80, 7))
    assert [op for op, *_ in found] == [OPEN, READ, CLOSE, OPEN, READ]
    assert [end for *_, end in found] == [1, 2, 3, 3, 4]


@pytest.mark.parametrize(("apart", "advised"), [(1, True), (16, False)])
def test_a_mapping_whose_neighbouring_pages_are_all_waited_for_is_of_random_reads(apart: int, advised: bool) -> None:
    """LMDB reads a value of eight pages with as many requests; elsewhere the next request comes 16 pages later."""
    waited = [(10 * each, 10 * each + 8, 1000 * (each // 8) + each % 8 * apart, 7) for each in range(1, 40)]
    found = MappedReads(paths=[b"/a"], sizes=[0], faults=_faults((0, 0, -1, 7), *waited)).of_process(7)
    random = 1 << OPEN_FLAGS.index("read") | 1 << OPEN_FLAGS.index("random")
    assert found["open_flags"][found["op"] == OPEN].tolist() == [random if advised else -1]


def test_an_open_that_was_counted_is_right_before_its_mapping_and_reaches_to_what_ended_before_it() -> None:
    """np.memmap for each batch: open, map, close; 8 ms an open. Spread over the job they would cost nothing."""
    op = np.array([OPEN, CLOSE] * 3)
    counted = rows_of({"op": op, "start_ns": 0, "end_ns": 0}, 6, api=APIS.index("POSIX"), origin=RECONSTRUCTED)
    times = np.array([20, 24, 40]) * 1_000_000
    mapped = rows_of(
        {"op": np.repeat([OPEN, READ], 3), "start_ns": np.concatenate((times, times + 1)),
         "end_ns": np.concatenate((times, times + 2_000_000))}, 6, api=APIS.index("MMAP"), origin=TRACED,
    )  # fmt: skip
    found = open_before_mapping(counted, mapped, {0: 8_000_000})
    opens = [(row["start_ns"] / 1e6, row["end_ns"] / 1e6) for row in found if row["op"] == OPEN]
    assert opens == [(12, 20), (22, 24), (32, 40)]
    assert (found["start_ns"][found["op"] == CLOSE] == times + 1).all()
    called = counted.copy()
    called["op"][1], called["origin"][1] = READ, TRACED
    for rows, lasted in ((called, {0: 8_000_000}), (counted[:2], {0: 8_000_000}), (counted, {})):
        assert np.array_equal(open_before_mapping(rows, mapped, lasted), rows)


def test_a_mapping_as_pytorch_makes_it_announces_sequential_reads() -> None:
    faults = _faults((0, 0, -1, 7), (1, 1, 40, 7), (2, 2, -1, 7), (3, 3, 80, 7))
    faults["kind"][2] = TORCH_MAPPING
    reads = MappedReads(paths=[b"/a"], sizes=[0], faults=faults)
    found = reads.of_process(7)
    assert [(row["op"], row["open_flags"]) for row in found] == [
        (OPEN, -1), (READ, -1), (CLOSE, -1), (OPEN, 1 | 256), (READ, -1),
    ]  # fmt: skip
    assert reads.inferred == {"torch_mappings": 1}


def test_bytes_that_no_fault_explains_stay_unseen() -> None:
    reads = MappedReads(paths=[b"/a"], sizes=[0], faults=_faults((0, 0, 0, 7), (9, 9, 20, 7)))
    other, gone = Unseen(kind="mapped", name="/b", bytes=None), Unseen(kind="socket", name="/a", bytes=5)
    for resident, left in ((None, 0), (2 * WINDOW, 0), (5 * WINDOW, 3 * WINDOW)):
        given = (Unseen(kind="mapped", name="/a", bytes=resident), other, gone)
        assert reads.still_unseen(given, {7}) == (Unseen(kind="mapped", name="/a", bytes=left), other, gone)
        assert reads.still_unseen(given, set()) == given


def test_large_folios_are_read_whole_where_read_ahead_grew_them_and_unknown_elsewhere() -> None:
    grown = [*range(0, 128, 16), *range(128, 512, 64), 512, 768, 1024, 1536]
    found = _reads(*((20 * row, 20 * row, page, 7) for row, page in enumerate(grown)))
    assert sum(length for _, _, length, _ in found) == 2048 * PAGE
    given = [Unseen(kind="mapped", name="/a", bytes=None)]
    for pages, left in ((grown, 0), (range(0, 4096, 512), None), (range(0, 4096, 300), 0)):
        faults = _faults(*((20 * row, 20 * row, page, 7) for row, page in enumerate(pages)))
        assert MappedReads(paths=[b"/a"], sizes=[0], faults=faults).still_unseen(given, {7})[0].bytes == left


def test_faults_beside_a_darshan_log_are_operations_of_its_process(tmp_path: Path) -> None:
    """A job that mapped its tokens: Darshan saw opens and seeks; the faults are made here, in the time of the job."""
    source, folder = recorded("captures/torch_mmap/mmap"), tmp_path / "run.recording"
    (folder / "logs").mkdir(parents=True)
    (folder / "recording.txt").touch()
    (found,) = source.rglob("*.darshan")
    log = open_log(Path(shutil.copy(found, folder / "logs")))
    tokens = next(path for path in log.names.values() if path.endswith(b"train.bin"))
    start_ns = log.job.start_ns + 2 * 10**9
    faults = _faults((0, 0, -1, 8481), (10, 40, 5, 8481), (90, 90, 900, 8481), (95, 99, 300, 8500))
    faults["pid"], faults["start_ns"] = 8481, faults["start_ns"] + start_ns
    faults["end_ns"] += start_ns
    head = {"files": [os.fsdecode(tokens)], "sizes": [64 << 20], "programs": [], "lost": 0, "realtime_ahead_ns": [0, 0]}
    (folder / "page_faults.bin").write_bytes(json.dumps(head).encode() + b"\n" + faults.tobytes())
    merge([log.path], tmp_path / "run.capture")
    capture = open_capture(tmp_path / "run.capture")
    rows = pa.Table.from_batches(list(capture.operations(0)))
    mine = rows.filter(pa.array(codes(rows, "api") == APIS.index("MMAP")))
    assert {capture.paths()[file] for file in mine["file_id"].to_pylist()} == {tokens.decode()}
    assert codes(mine, "op").tolist() == [OPEN, READ, READ, READ]
    assert mine["offset"].to_pylist() == [-1, 5 * PAGE, 900 * PAGE, 300 * PAGE]
    begin = start_ns - capture.info.job.zero_ns
    assert mine["start_ns"].to_pylist() == [begin + 1000 * each for each in (0, 10, 90, 95)]
    assert len(set(mine["lane"].to_pylist()[:3])) == 1
    assert mine["lane"].to_pylist()[3] not in mine["lane"].to_pylist()[:3]
    assert (np.diff(rows["start_ns"].to_numpy()) >= 0).all()
    assert unseen_of(capture.info, capture.files) == ()
    (size,) = (row["size"] for row in capture.files.to_pylist() if row["path"] == tokens.decode())
    assert size == 64 << 20
