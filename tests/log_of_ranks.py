"""Logs of a job of several ranks, each of which leaves a bit of everything that a merge works on."""

import numpy as np

from dxt_replay.traces.files import record_id
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, write_log

RANKS = 7
TEMPORARY = b"/ckpt/m%d.index.tempstate7"


def rank_of_log(rank, rng, *, threads, most=9):
    """Names, DXT records, and POSIX and STDIO counters of one rank: partly traced, opened again, renamed, untraced."""
    names = [b"/data/%d-%d.bin" % (rank, file) for file in range(rank % 4)] + [TEMPORARY % rank, b"/data/common.bin"]
    traced, posix = [], []
    for name in names:
        writes, count = name.startswith(b"/ckpt"), int(rng.integers(1, most))
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
    temporary, final = TEMPORARY % rank, (TEMPORARY % rank).removesuffix(b".tempstate7")
    source = int(np.uint64(record_id(temporary)).astype(np.int64))
    renamed = {"POSIX_RENAME_TARGETS": 1, "POSIX_RENAMED_FROM": source}
    posix.append({"record_id": record_id(final), "rank": rank, **renamed})
    return [*names, final, b"/log"], traced, posix, stdio


def write_ranks(path, parts, *, threads, dxt=None, shared=()):
    """Write the log of a job of RANKS ranks with the `parts` of some. `dxt`: the packed streams of its trace instead.
    `shared`: POSIX counters that were reduced over all ranks."""
    names = {record_id(name): name for part in parts for name in part[0]}
    names |= {row["record_id"]: b"/data/shared-%d.bin" % place for place, row in enumerate(shared)}
    version = 2 if threads else 1
    streams = [encode_dxt(part[1], "DXT_POSIX", version) for part in parts] if dxt is None else dxt
    counters = [encode_counters("POSIX", [*part[2], *(() if place else shared)], 4) for place, part in enumerate(parts)]
    modules = {
        "DXT_POSIX": ModuleSpec(version=version, streams=streams, packed=dxt is not None),
        "POSIX": ModuleSpec(version=4, streams=counters),
        "STDIO": ModuleSpec(version=2, streams=[encode_counters("STDIO", part[3], 2) for part in parts]),
    }
    return write_log(path, job=JobSpec(nprocs=RANKS), names=names, modules=modules)


def rows_by_rank(capture):
    """The rows of each rank of an opened capture, with paths in the place of files."""
    paths = capture.paths()
    rows: dict[int, list] = {rank: [] for rank in range(RANKS)}
    for batch in capture.operations():
        for row in batch.to_pylist():
            row["other_file_id"] = paths[row["other_file_id"]] if row["op"] == "rename" else None
            rows[row["rank"]].append(row | {"file_id": paths[row["file_id"]]})
    return rows
