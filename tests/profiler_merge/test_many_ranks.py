"""A log of many small ranks, which are worked on together: each comes out as from a log of its own."""

import numpy as np
import pytest

from profiler_merge.darshan.record_id import record_id
from profiler_merge.merge import merge
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, write_log
from traces.store.reader import open_capture

RANKS = 7
TEMPORARY = b"/ckpt/m%d.index.tempstate7"


def rank_of_log(rank, rng, *, threads):
    """Names, DXT records, and POSIX and STDIO counters of one rank: partly traced, opened again, renamed, untraced."""
    names = [b"/data/%d-%d.bin" % (rank, file) for file in range(rank % 4)] + [TEMPORARY % rank, b"/data/common.bin"]
    traced, posix = [], []
    for name in names:
        writes, count = name.startswith(b"/ckpt"), int(rng.integers(1, 9))
        start = np.sort(rng.integers(1_000_000, 1_000_040, count)) * 1e-6
        length, offset = rng.integers(1, 4000, count), rng.integers(0, 9000, count)
        columns = [offset.tolist(), length.tolist(), start.tolist(), (start + 1e-5).tolist()]
        columns += [rng.integers(100, 103, count).tolist()] if threads else []
        segments = list(zip(*columns, strict=True))[: count if rng.random() < 0.7 else count // 2]
        if segments:
            traced.append(
                DxtRecord(record_id=record_id(name), rank=rank, **{"writes" if writes else "reads": segments})
            )
        way, done = ("WRITE", "WRITTEN") if writes else ("READ", "READ")
        posix.append(
            {
                "record_id": record_id(name), "rank": rank, "POSIX_OPENS": int(rng.integers(1, 4)),
                "POSIX_STATS": int(rng.integers(0, 3)), "POSIX_SEEKS": int(rng.integers(0, 3)),
                f"POSIX_{way}S": count, f"POSIX_BYTES_{done}": int(length.sum()),
                f"POSIX_MAX_BYTE_{done}": int((offset + length).max() - 1), "POSIX_F_META_TIME": 1e-4,
                "POSIX_F_OPEN_START_TIMESTAMP": 0.9, "POSIX_F_OPEN_END_TIMESTAMP": 0.9 + 0.2 * float(rng.random()),
                "POSIX_F_CLOSE_START_TIMESTAMP": 1.05, "POSIX_F_CLOSE_END_TIMESTAMP": 2.0,
            }
        )  # fmt: skip
    stdio = [
        {"record_id": record_id(b"/log"), "rank": rank, "STDIO_OPENS": 1, "STDIO_WRITES": 2, "STDIO_BYTES_WRITTEN": 9}
    ]
    return [*names, b"/log"], traced, posix, stdio


def write(path, parts, *, threads):
    names = {record_id(name): name for part in parts for name in part[0]}
    version = 2 if threads else 1
    modules = {
        "DXT_POSIX": ModuleSpec(version=version, streams=[encode_dxt(part[1], "DXT_POSIX", version) for part in parts]),
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", part[2], 4) for part in parts]),
        "STDIO": ModuleSpec(version=2, streams=[encode_counters("STDIO", part[3], 2) for part in parts]),
    }
    return write_log(path, job=JobSpec(nprocs=RANKS), names=names, modules=modules)


def merged(log):
    """The rows of each rank, with paths in the place of files, and the number of reads and writes that were rebuilt."""
    result = merge([log], [], log.with_suffix(".capture"))
    capture = open_capture(result.capture)
    paths = capture.paths()
    rows: dict[int, list] = {rank: [] for rank in range(RANKS)}
    for batch in capture.operations():
        for row in batch.to_pylist():
            row["offset"] = paths[row["offset"]] if row["op"] == "rename" else row["offset"]
            rows[row["rank"]].append(row | {"file_id": paths[row["file_id"]]})
    return rows, result.as_json()["rebuilt"]["operations"]


@pytest.mark.parametrize("threads", [True, False])
def test_ranks_together_are_what_each_is_alone(tmp_path, threads):
    rng = np.random.default_rng(12)
    parts = [rank_of_log(rank, rng, threads=threads) for rank in range(RANKS)]
    together, rebuilt = merged(write(tmp_path / "all.darshan", parts, threads=threads))
    assert all(together.values())
    assert {"rename", "seek", "open", "write"} <= {row["op"] for rows in together.values() for row in rows}
    alone = [merged(write(tmp_path / f"{rank}.darshan", [part], threads=threads)) for rank, part in enumerate(parts)]
    for rank, (rows, _) in enumerate(alone):
        assert together[rank] == rows[rank]
    assert rebuilt == sum(count for _, count in alone) > 0
