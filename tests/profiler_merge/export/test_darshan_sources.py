"""What pydarshan reads of an exported log is what it reads of the log that the capture came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.export.darshan import write_darshan
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests import darshan_oracle

DETERMINED = (
    "POSIX_READS", "POSIX_WRITES", "POSIX_BYTES_READ", "POSIX_BYTES_WRITTEN", "POSIX_MAX_BYTE_READ",
    "POSIX_MAX_BYTE_WRITTEN", "POSIX_CONSEC_READS", "POSIX_CONSEC_WRITES", "POSIX_SEQ_READS", "POSIX_SEQ_WRITES",
    "POSIX_RW_SWITCHES", "POSIX_MAX_READ_TIME_SIZE", "POSIX_MAX_WRITE_TIME_SIZE", "POSIX_F_READ_START_TIMESTAMP",
    "POSIX_F_READ_END_TIMESTAMP", "POSIX_F_WRITE_START_TIMESTAMP", "POSIX_F_WRITE_END_TIMESTAMP", "POSIX_F_READ_TIME",
    "POSIX_F_MAX_READ_TIME", "POSIX_F_MAX_WRITE_TIME",
)  # fmt: skip
"""With the bins of sizes: what the reads and writes of a file alone tell."""


def counters_by_file(arrays: Mapping[str, np.ndarray]) -> dict[tuple[int, int], dict[str, float]]:
    """pydarshan's POSIX records of single ranks that moved bytes or at least tried to."""
    names = [*arrays["POSIX names"].tolist(), *arrays["POSIX fnames"].tolist()]
    values = np.concatenate([arrays["POSIX counters"].astype(np.float64), arrays["POSIX fcounters"]]).T
    keys = zip(arrays["POSIX ids"].tolist(), arrays["POSIX ranks"].tolist(), strict=True)
    found = {key: dict(zip(names, row, strict=True)) for key, row in zip(keys, values.tolist(), strict=True)}
    return {key: row for key, row in found.items() if key[1] >= 0 and row["POSIX_READS"] + row["POSIX_WRITES"] > 0}


def segments(arrays: Mapping[str, np.ndarray], module: str = "DXT_POSIX") -> list[tuple[int, ...]]:
    """pydarshan's segments as (record, rank, write, offset, length, start ns, end ns), sorted."""
    found = []
    at = 0
    times = np.rint(arrays[f"{module} times"] * 1e9).astype(np.int64)
    for key, rank, writes, reads in zip(
        *(arrays[f"{module} {name}"].tolist() for name in ("ids", "ranks", "writes", "reads")), strict=True
    ):
        for place in range(writes + reads):
            found.append((key, rank, place < writes, *arrays[f"{module} whole"][at].tolist(), *times[at].tolist()))
            at += 1
    return sorted(found)


def compare_with_source(source: Path, folder: Path) -> None:
    """What pydarshan reads of an exported log is what it reads of the log that the capture came from."""
    merge([source], [], folder / "once.capture")
    write_darshan(open_capture(folder / "once.capture"), folder / "x.darshan")
    old, new = darshan_oracle.read_all([source, folder / "x.darshan"]).values()
    assert not isinstance(old, str), old
    assert not isinstance(new, str), new
    assert (old["run_time"], str(old["exe"])) == (new["run_time"], str(new["exe"]))
    assert segments(new) == segments(old)
    before, after = counters_by_file(old), counters_by_file(new)
    assert before.keys() <= after.keys()
    assert before
    compared = [name for name in next(iter(before.values())) if name in DETERMINED or name.startswith("POSIX_SIZE_")]
    assert len(compared) == 40
    # Times were doubles of some 1e9 s when Darshan subtracted them.
    differ = {
        (name, key): (row[name], after[key][name])
        for key, row in before.items()
        for name in compared
        if not np.isclose(
            row[name], after[key][name], rtol=1e-6 if "_F_" in name else 0, atol=2e-6 if "_F_" in name else 0
        )
    }
    assert not differ


@pytest.mark.parametrize("name", ["imagenet", "cosmictagger"])
def test_pydarshan_reads_of_an_export_what_it_reads_of_the_source(name: str, tmp_path: Path) -> None:
    compare_with_source(sample(name).log, tmp_path)


@pytest.mark.skipif(not darshan_oracle.shared_logs(), reason="no logs beside the checkout")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["candle", "climate", "cosmoflow", "ffn", "frnn", "l2hmc", "theta"])
def test_pydarshan_reads_of_other_captures_what_it_reads_of_their_source(name: str, tmp_path: Path) -> None:
    root = darshan_oracle.SHARED
    log = (
        root / "theta" / "cosmictagger_8ranks.darshan" if name == "theta" else root / "captures" / name / "job.darshan"
    )
    compare_with_source(log, tmp_path)
