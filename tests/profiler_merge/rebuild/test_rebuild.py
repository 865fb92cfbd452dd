"""Merging written logs: repaired offsets, renames that counters tell, files that nothing was traced of, bounds."""

from collections import Counter

import numpy as np
import pyarrow.compute as pc
import pytest

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.rebuild import data
from dxt_replay.profiler_merge.rebuild import rows as module
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import record_id
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, write_log

DATA, OTHER, TEMPORARY, FINAL = b"/data/whole.bin", b"/data/other.bin", b"/ckpt/m.tempstate12", b"/ckpt/m.index"
STAMPS = {"OPEN_START": 1.0, "OPEN_END": 1.1, "CLOSE_START": 9.0, "CLOSE_END": 9.1}


def counters(module, path, *, rank=0, stamps=STAMPS, **values):
    row = {"record_id": record_id(path), "rank": rank}
    row |= {f"{module}_{name}": value for name, value in values.items()}
    return row | {f"{module}_F_{name}_TIMESTAMP": value for name, value in stamps.items()}


def log_of(tmp_path, *, posix=(), stdio=(), dxt=(), dxt_version=1, nprocs=1, names=()):
    rows = {"POSIX": posix, "STDIO": stdio}
    versions = {"POSIX": 4, "STDIO": 2}
    modules = {
        name: ModuleSpec(version=versions[name], streams=[encode_counters(name, given, versions[name])])
        for name, given in rows.items()
        if given
    }
    if dxt:
        modules["DXT_POSIX"] = ModuleSpec(version=dxt_version, streams=[encode_dxt(dxt, "DXT_POSIX", dxt_version)])
    known = {record_id(path): path for path in (DATA, OTHER, *names)}
    return write_log(tmp_path / "x.darshan", job=JobSpec(nprocs=nprocs), names=known, modules=modules)


def rows_of(tmp_path, log, **options):
    tmp_path.mkdir(exist_ok=True)
    merge([log], [], tmp_path / "c.capture", MergeOptions(align="0", **options))
    capture = open_capture(tmp_path / "c.capture")
    return capture, [row for batch in capture.operations() for row in batch.to_pylist()]


def segments(lengths, threads=None):
    offset = 0
    found = []
    for number, length in enumerate(lengths):
        start = 2.0 + 0.1 * number
        segment = (offset, length, start, start + 0.05)
        found.append(segment if threads is None else (*segment, threads[number]))
        offset += length
    return found


IN_TURNS = [100, 100, 100, 100, 40, 40, 0, 0]


@pytest.mark.parametrize(
    ("lengths", "threads", "options", "offsets", "state"),
    [
        # Measured with Darshan 3.5.0: read(a, 100), read(b, 100) three times gives the offsets 0, 100, 200 ...
        *((IN_TURNS, None, each, [0, 0, 100, 100, 200, 200, 240, 240], "repaired")
          for each in ({}, {"reconstruct": False}, {"memory_rows": 4, "block_rows": 3})),
        (IN_TURNS, [5, 6, 6, 5, 5, 6, 6, 5], {}, [0, 0, 100, 100, 200, 200, 240, 240], "repaired"),
        ([100] * 4, None, {}, [0, 100, 200, 300], "suspect"),  # two readings
    ],
)  # fmt: skip
def test_offsets_of_two_descriptors_are_repaired_or_flagged_and_that_is_said(
    tmp_path, lengths, threads, options, offsets, state
):
    whole = sum(lengths)
    posix = [counters("POSIX", DATA, OPENS=2, READS=len(lengths), BYTES_READ=whole, MAX_BYTE_READ=whole - 1)]
    dxt = [DxtRecord(record_id=record_id(DATA), reads=segments(lengths, threads))]
    log = log_of(tmp_path, posix=posix, dxt=dxt, dxt_version=1 if threads is None else 2)
    capture, rows = rows_of(tmp_path, log, **options)
    reads = [(row["lane"], row["offset"]) for row in rows if row["op"] == "read"]
    assert [offset for _, offset in reads] == offsets
    assert threads is None or [lane for lane, _ in reads] == [each - 5 for each in threads]
    size = max(offset + length for offset, length in zip(offsets, lengths, strict=True))
    assert capture.files.select(["size", "offsets"]).to_pylist() == [{"size": size, "offsets": state}]
    said = "8 operations were repaired" if state == "repaired" else "4 operations may be wrong"
    assert any(said in text and (state == "suspect" or DATA.decode() in text) for text in capture.info.warnings)


def test_renames_that_darshan_counted(tmp_path):
    source = np.uint64(record_id(DATA)).astype(np.int64)
    posix = [
        counters("POSIX", DATA, OPENS=1, RENAME_SOURCES=1),
        counters("POSIX", OTHER, RENAME_TARGETS=1, RENAMED_FROM=int(source), stamps={}),
    ]
    capture, rows = rows_of(tmp_path, log_of(tmp_path, posix=posix))
    paths = capture.paths()
    assert [(row["op"], paths[row["file_id"]]) for row in rows] == [
        ("open", DATA.decode()), ("close", DATA.decode()), ("rename", DATA.decode()),
    ]  # fmt: skip
    assert paths[rows[-1]["offset"]] == OTHER.decode()
    assert rows[-1]["start_ns"] == rows[-1]["end_ns"] == 9_100_000_000


def test_a_renamed_file_is_written_on_the_lane_that_reads_it(tmp_path):
    """In a replay the file must be there before it is read, however long the storage takes to write it."""
    names = ("OPEN_START", "OPEN_END", "WRITE_START", "WRITE_END", "CLOSE_START", "CLOSE_END")
    written = {name: 3 + 0.1 * place for place, name in enumerate(names)}
    read = {"OPEN_START": 5.0, "OPEN_END": 5.1, "CLOSE_START": 5.4, "CLOSE_END": 5.5}
    source = int(np.uint64(record_id(TEMPORARY)).astype(np.int64))
    stdio = [counters("STDIO", TEMPORARY, OPENS=1, WRITES=1, BYTES_WRITTEN=8, MAX_BYTE_WRITTEN=7, stamps=written)]
    posix = [
        counters("POSIX", DATA, OPENS=1, READS=2, BYTES_READ=20, MAX_BYTE_READ=9),
        counters("POSIX", TEMPORARY, RENAME_SOURCES=1, stamps={}),
        counters("POSIX", FINAL, OPENS=1, READS=1, BYTES_READ=8, MAX_BYTE_READ=7, RENAME_TARGETS=1, RENAMED_FROM=source,
                 stamps=read),
    ]  # fmt: skip
    reader, trainer = 5, 6
    dxt = [
        DxtRecord(record_id=record_id(DATA), reads=[(0, 10, 2.0, 2.1, reader), (0, 10, 7.0, 7.1, reader)]),
        DxtRecord(record_id=record_id(FINAL), reads=[(0, 8, 5.2, 5.3, trainer)]),
    ]
    log = log_of(tmp_path, posix=posix, stdio=stdio, dxt=dxt, dxt_version=2, names=(TEMPORARY, FINAL))
    capture, rows = rows_of(tmp_path, log)
    paths = capture.paths()
    assert {(paths[row["file_id"]].encode(), row["lane"]) for row in rows} == {(DATA, 0), (TEMPORARY, 1), (FINAL, 1)}
    (rename,) = [row for row in rows if row["op"] == "rename"]
    assert (paths[rename["other_file_id"]].encode(), rename["start_ns"]) == (FINAL, 3_500_000_000)
    named = {row["path"]: row for row in capture.files.to_pylist()}
    assert named[FINAL.decode()]["size"] == 8


def test_the_close_of_a_stream_on_a_descriptor_writes_its_buffer(tmp_path):
    """np.save: fdopen of a duplicate, fwrite into the buffer, fclose; counters of Darshan 3.5.0 on slow storage."""
    stamps = {
        "OPEN_START": 2.0,
        "OPEN_END": 2.1,
        "WRITE_START": 2.1,
        "WRITE_END": 2.2,
        "CLOSE_START": 2.2,
        "CLOSE_END": 3.0,
    }
    values = {"WRITES": 1, "BYTES_WRITTEN": 160, "MAX_BYTE_WRITTEN": 159, "F_WRITE_TIME": 0.1, "F_META_TIME": 0.9}
    for fdopens, ends in ((1, [3_000_000_000]), (0, [2_200_000_000])):
        stdio = [counters("STDIO", DATA, OPENS=1, FDOPENS=fdopens, stamps=stamps, **values)]
        _, rows = rows_of(tmp_path / str(fdopens), log_of(tmp_path, stdio=stdio))
        assert [row["end_ns"] for row in rows if row["op"] == "write"] == ends


def test_ranks_that_nothing_was_traced_of_have_rows_too(tmp_path):
    posix = [
        counters("POSIX", DATA, rank=-1, OPENS=3, READS=1, BYTES_READ=8),
        counters("POSIX", OTHER, rank=2, OPENS=1, STATS=2),
    ]
    record = DxtRecord(record_id=record_id(DATA), rank=1, reads=[(0, 8, 2.0, 2.5)])
    log = log_of(tmp_path, posix=posix, dxt=[record], nprocs=3)
    capture, rows = rows_of(tmp_path, log)
    ops = {rank: [row["op"] for row in rows if row["rank"] == rank] for rank in capture.ranks}
    assert ops == {
        0: ["open", "close"],
        1: ["open", "read", "close"],
        2: ["open", "open", "stat", "stat", "close", "close"],
    }
    assert [row["rank"] for row in rows] == sorted(row["rank"] for row in rows)
    only, _ = rows_of(tmp_path / "only", log, exclude=("*other*",))
    assert only.paths() == [DATA.decode()]


def test_metadata_beyond_reason_is_left_out_and_that_is_said_and_no_transfer_is(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    posix = [counters("POSIX", DATA, OPENS=1, SEEKS=1 << 56), counters("POSIX", OTHER, OPENS=1, STATS=3)]
    streams = [counters("STDIO", DATA, OPENS=300, SEEKS=70, READS=5, BYTES_READ=50, F_META_TIME=6.7)]
    capture, rows = rows_of(tmp_path, log_of(tmp_path, posix=posix, stdio=streams))
    ops = Counter((row["api"], row["op"]) for row in rows)
    assert (ops["POSIX", "stat"], ops["POSIX", "seek"], ops["POSIX", "open"]) == (0, 0, 2)
    assert [row["length"] for row in rows if row["op"] == "read"] == [10] * 5
    kept = [row for row in rows if row["api"] == "STDIO" and row["op"] in ("open", "close")]
    # The first open and the last, at their times, and as long as one of the 300 took.
    assert len(kept) == 4
    assert max(row["end_ns"] - row["start_ns"] for row in kept) <= 6.7e9 / 300
    (said,) = (text for text in capture.info.warnings if "too many to rebuild" in text)
    assert "599 opens, closes, stats and syncs of /data/whole.bin and 1 more files" in said
    assert pc.max(capture.files["posix_seeks"]).as_py() == 1 << 56


def test_too_many_reads_are_refused_with_the_file_its_bytes_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "RECONSTRUCT_LIMIT", 100)
    streams = [counters("STDIO", DATA, OPENS=1, SEEKS=1 << 40, READS=500, BYTES_READ=500 << 20)]
    log = log_of(tmp_path, stdio=[*streams, counters("STDIO", OTHER, OPENS=1, WRITES=7, BYTES_WRITTEN=70)])
    with pytest.raises(
        LogError, match=r"507 reads and writes .* 500 of them \(500 MiB\) of /data/whole.bin"
    ) as refused:
        rows_of(tmp_path, log)
    assert "--exclude" in str(refused.value)
