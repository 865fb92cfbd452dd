from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.analysis.sizes import DARSHAN_BINS, request_sizes
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.store.reader import Capture, open_capture
from tests import darshan_oracle
from tests.capture_builder import build_capture, read, write

CAPTURES = ("candle", "climate", "cosmictagger", "cosmoflow", "cosmoflow_threads", "ffn", "frnn", "imagenet", "l2hmc")


def sized(tmp_path: Path) -> Capture:
    sizes = [0, 1, 100, 101, 1024, 1025, 4096, 4096, 4096, 8191, 8192]
    return build_capture(
        tmp_path,
        files=["/a"],
        ops=[
            *(read(0, length=size, start_ns=n) for n, size in enumerate(sizes)),
            write(0, length=100, start_ns=50),
            write(0, length=5, start_ns=60, api="STDIO", origin="reconstructed"),
        ],
    )


def test_powers_of_two(tmp_path: Path) -> None:
    rows = request_sizes(sized(tmp_path)).powers().to_pylist()
    reads = {(row["least_bytes"], row["most_bytes"]): row["operations"] for row in rows if row["op"] == "read"}
    assert reads == {
        (0, 0): 1,
        (1, 1): 1,
        (64, 127): 2,
        (1024, 2047): 2,
        (4096, 8191): 4,
        (8192, 16383): 1,
    }
    assert [row["bin"] for row in rows[:3]] == ["0", "2^0", "2^6"]


def test_darshans_bins_include_their_upper_bound(tmp_path: Path) -> None:
    rows = request_sizes(sized(tmp_path)).darshan_bins().to_pylist()
    reads = {row["bin"]: row["operations"] for row in rows if row["op"] == "read"}
    assert reads == {"0_100": 3, "100_1K": 2, "1K_10K": 6}
    assert rows[1] == {
        "interface": "POSIX",
        "op": "read",
        "origin": "traced",
        "bin": "100_1K",
        "least_bytes": 101,
        "most_bytes": 1024,
        "operations": 2,
        "bytes": 1125,
    }


def test_exact_sizes_and_the_rest(tmp_path: Path) -> None:
    rows = [row for row in request_sizes(sized(tmp_path)).exact(2).to_pylist() if row["op"] == "read"]
    assert [(row["size_bytes"], row["operations"], row["bytes"]) for row in rows] == [
        (4096, 3, 12288),
        (0, 1, 0),
        (None, 7, 1 + 100 + 101 + 1024 + 1025 + 8191 + 8192),
    ]
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_interfaces_directions_and_origins_stand_apart(tmp_path: Path) -> None:
    found = request_sizes(sized(tmp_path))
    assert [(part.interface, part.op, part.origin, part.operations, part.bytes) for part in found.classes] == [
        ("POSIX", "read", "traced", 11, 30922),
        ("POSIX", "write", "traced", 1, 100),
        ("STDIO", "write", "reconstructed", 1, 5),
    ]
    assert [part.distribution.count for part in found.classes] == [11, 1, 1]


def test_the_histogram_counts_everything_unless_rare_bins_are_dropped(tmp_path: Path) -> None:
    part = request_sizes(sized(tmp_path)).classes[0]
    counts, edges = part.histogram(4)
    assert counts.tolist() == [6, 0, 3, 2]
    assert (edges[0], edges[-1]) == (0, 8192)
    assert part.histogram(4, least_share=0.25)[0].tolist() == [6, 0, 3, 0]


def test_very_large_requests_have_the_open_bin(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=(1 << 30) + 1)])
    (row,) = request_sizes(capture).darshan_bins().to_pylist()
    assert (row["bin"], row["most_bytes"], row["bytes"]) == ("1G_PLUS", None, (1 << 30) + 1)


def test_no_operations(tmp_path: Path) -> None:
    found = request_sizes(build_capture(tmp_path))
    assert (found.powers().num_rows, found.exact().num_rows, found.classes) == (0, 0, ())


@pytest.mark.parametrize("name", CAPTURES)
def test_bins_are_the_counters_of_the_log(tmp_path: Path, name: str) -> None:
    """Darshan counted the same operations that DXT traced into POSIX_SIZE_*."""
    log = darshan_oracle.SHARED / "captures" / name / "job.darshan"
    if not log.is_file():
        pytest.skip(f"{log} is not on this machine")
    merge([log], [], tmp_path / "x.capture")
    found = request_sizes(open_capture(tmp_path / "x.capture"))
    answer = darshan_oracle.answer(log)
    names = answer["POSIX names"].tolist()
    for op in ("read", "write"):
        first = names.index(f"POSIX_SIZE_{op.upper()}_0_100")
        counted = answer["POSIX counters"][first : first + len(DARSHAN_BINS)].sum(axis=1)
        traced = [part for part in found.classes if (part.interface, part.op, part.origin) == ("POSIX", op, "traced")]
        mine = sum((part.darshan_counts for part in traced), start=np.zeros(len(DARSHAN_BINS), dtype=np.int64))
        assert mine.tolist() == counted.tolist()
