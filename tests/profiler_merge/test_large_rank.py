"""A rank that is kept in files and merged in stretches of time comes out as it does in memory."""

import json

import numpy as np
import pytest

from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.recorded_job import MergeOptions
from dxt_replay.traces.files import record_id
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, write_log

SEGMENTS = {0: 12, 1: 400, 3: 300, 4: 2}
"""Operations of the largest file of each rank."""


def operations_of_file(rng, count, *, threads):
    """Columns of reads or writes: in order, in several passes, or shuffled; many start or end together."""
    length = np.where(rng.random(count) < 0.1, 0, 1 << rng.integers(0, 12))
    offset = np.cumsum(length) - length
    kind = rng.integers(0, 4)
    if kind == 1:
        offset %= max(int(length.sum()) // int(rng.integers(2, 5)), 1)
    elif kind == 2:
        offset = rng.permutation(offset)
    elif kind == 3:
        offset[rng.random(count) < 0.1] += 5
    start = np.sort(rng.integers(1_000, 1_000 + int(rng.integers(1, 4)) * count, count)) * 1e-4
    end = start + rng.integers(0, 30, count) * 1e-4
    columns = [offset.tolist(), length.tolist(), start.tolist(), end.tolist()]
    return columns + ([rng.integers(100, 104, count).tolist()] if threads else [])


def counters_of_file(rng, name, rank, columns, *, is_write):
    offset, length, start, end = (np.array(column) for column in columns[:4])
    way, done = ("WRITE", "WRITTEN") if is_write else ("READ", "READ")
    opened, closed = (
        (start.min() - 1e-3 * rng.random(), end.max() + 1e-3 * rng.random())
        if rng.random() < 0.7
        else (start[len(start) // 3], start[2 * len(start) // 3])
    )
    return {
        "record_id": record_id(name), "rank": rank, "POSIX_OPENS": int(rng.integers(1, 7)),
        "POSIX_STATS": int(rng.integers(0, 3)), "POSIX_SEEKS": int(rng.integers(0, 9)) * int(rng.integers(0, 2)),
        "POSIX_FSYNCS": int(rng.integers(0, 3)), f"POSIX_{way}S": len(offset),
        f"POSIX_BYTES_{done}": int(length.sum()), f"POSIX_MAX_BYTE_{done}": max(int((offset + length).max()) - 1, 0),
        "POSIX_F_META_TIME": 1e-3 * rng.random(), f"POSIX_F_{way}_TIME": float((end - start).sum()) * 1.1,
        "POSIX_F_OPEN_START_TIMESTAMP": opened, "POSIX_F_OPEN_END_TIMESTAMP": opened + 0.02 * float(rng.random()),
        "POSIX_F_CLOSE_START_TIMESTAMP": closed - 0.01 * float(rng.random()), "POSIX_F_CLOSE_END_TIMESTAMP": closed,
    }  # fmt: skip


def large_log(path, seed):
    """A log of ranks with few operations and with many, at POSIX and, of some files, at MPI-IO as well."""
    rng = np.random.default_rng(seed)
    threads, missing, layers = bool(seed % 2), seed % 3 == 0, seed % 4 > 1
    names, traced, above, counters = {}, [], [], []
    for rank, most in SEGMENTS.items():
        for file in range(int(rng.integers(1, 5))):
            name = b"/data/%d-%d.bin" % (rank, file)
            names[record_id(name)] = name
            is_write = rng.random() < 0.4
            columns = operations_of_file(rng, max(most // (1 + file), 2), threads=threads)
            segments = list(zip(*columns, strict=True))
            counters.append(counters_of_file(rng, name, rank, columns, is_write=is_write))
            of = "writes" if is_write else "reads"
            kept = segments[: len(segments) // 2] if missing and rng.random() < 0.3 else segments
            traced.append(DxtRecord(record_id=record_id(name), rank=rank, **{of: kept}))
            if layers and rng.random() < 0.5:
                above.append(DxtRecord(record_id=record_id(name), rank=rank, **{of: segments[::2]}))
    version = {"DXT_POSIX": 2 if threads else 1, "DXT_MPIIO": 3 if threads else 2}

    def streams(module, records):
        ranks = [[record for record in records if record.rank == rank] for rank in SEGMENTS]
        return [encode_dxt(of_rank, module, version[module]) for of_rank in ranks if of_rank]

    modules = {
        "DXT_POSIX": ModuleSpec(version=version["DXT_POSIX"], streams=streams("DXT_POSIX", traced)),
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", counters, 4)]),
    }
    if above:
        modules["DXT_MPIIO"] = ModuleSpec(
            version=version["DXT_MPIIO"], streams=streams("DXT_MPIIO", above)
        )  # fmt: skip
    return write_log(path, job=JobSpec(nprocs=max(SEGMENTS) + 1), names=names, modules=modules)


def merged(log, **options):
    capture = log.with_suffix(".capture")
    merge([log], [], capture, MergeOptions(force=True, **options))
    opened = open_capture(capture)
    rows = [row for batch in opened.operations() for row in batch.to_pylist()]
    info = json.loads((capture / "capture.json").read_text())
    assert sorted(path.name for path in capture.iterdir()) == sorted(
        ["capture.json", "files.parquet", "index.parquet", "lanes.parquet", "ops", "spans.parquet"]
    )
    # Which counter is the example depends on the ranks that are rebuilt together.
    info["warnings"] = [text.partition(" (for example")[0] for text in info["warnings"]]
    return rows, opened.files.to_pylist(), {name: info[name] for name in ("clock", "coverage", "warnings", "lanes")}


@pytest.mark.parametrize("seed", range(12))
def test_stretches_make_the_rows_that_memory_does(tmp_path, seed):
    log = large_log(tmp_path / "a.darshan", seed)
    whole, parts = merged(log), merged(log, memory_rows=50, block_rows=40)
    assert len(whole[0]) > sum(SEGMENTS.values())
    for one, other in zip(whole, parts, strict=True):
        assert one == other


def test_excluded_files_of_a_large_rank_are_left_out(tmp_path):
    log = large_log(tmp_path / "a.darshan", 1)
    options = {"exclude": ("*-0.bin",)}
    whole, parts = merged(log, **options), merged(log, memory_rows=50, block_rows=40, **options)
    assert whole == parts
    assert 0 < len(whole[0]) < len(merged(log)[0])


def log_of_a_file_opened_twice(path, *, threads):
    """One rank reads a file whole through two descriptors, in turns or from two threads that drift apart, and another
    file beside it. Darshan has one position for both. The log is not in the order of the starts.
    Returns it and the true offsets, by start."""
    name, other = b"/data/twice.bin", b"/data/other.bin"
    sequence = [256] * 60 + [100, 0]
    turns = np.tile([0, 1], len(sequence))
    if threads:
        turns = np.random.default_rng(5).permutation(turns)
    taken = [iter(sequence), iter(sequence)]
    lengths = np.array([next(taken[turn]) for turn in turns.tolist()])
    true = np.zeros_like(lengths)
    for descriptor in (0, 1):
        mine = turns == descriptor
        true[mine] = np.cumsum(lengths[mine]) - lengths[mine]

    def reads(offset, length, first_s, thread):
        start = first_s + 1e-3 * np.arange(len(length))
        columns = [offset.tolist(), length.tolist(), start.tolist(), (start + 4e-4).tolist()]
        return list(zip(*columns, *([thread.tolist()] if threads else []), strict=True))[::-1]

    of_other = np.full(100, 64)
    records = [
        DxtRecord(record_id=record_id(other), rank=0, reads=reads(64 * np.arange(100), of_other, 1.0005, of_other)),
        DxtRecord(record_id=record_id(name), rank=0, reads=reads(np.cumsum(lengths) - lengths, lengths, 1, 70 + turns)),
    ]
    counters = [
        {
            "record_id": record_id(file), "rank": 0, "POSIX_OPENS": opens, "POSIX_READS": len(of_file),
            "POSIX_BYTES_READ": int(of_file.sum()), "POSIX_F_OPEN_START_TIMESTAMP": 0.5,
            "POSIX_F_OPEN_END_TIMESTAMP": 0.6, "POSIX_F_CLOSE_START_TIMESTAMP": 2, "POSIX_F_CLOSE_END_TIMESTAMP": 2.1,
        }
        for file, opens, of_file in ((other, 1, of_other), (name, 2, lengths))
    ]  # fmt: skip
    version = 2 if threads else 1
    modules = {
        "DXT_POSIX": ModuleSpec(version=version, streams=[encode_dxt(records, "DXT_POSIX", version)]),
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", counters, 4)]),
    }
    names = {record_id(each): each for each in (name, other)}
    return write_log(path, job=JobSpec(nprocs=1), names=names, modules=modules), true.tolist()


@pytest.mark.parametrize("threads", [False, True])
def test_offsets_of_a_file_opened_twice_at_once_are_repaired(tmp_path, threads):
    log, true = log_of_a_file_opened_twice(tmp_path / "a.darshan", threads=threads)
    whole, parts = merged(log), merged(log, memory_rows=50, block_rows=40)
    rows, files, _ = parts
    twice = next(file["file_id"] for file in files if file["path"].endswith("twice.bin"))
    assert [row["offset"] for row in rows if row["file_id"] == twice and row["op"] == "read"] == true
    assert whole == parts
