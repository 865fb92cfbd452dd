"""A log without a trace, as a user meets it: the layer of the headline, what findings judge, and the command kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.files import record_id
from tests.darshan_writer import JobSpec, ModuleSpec, encode_counters, write_log
from tests.places import recorded

SHARED, OWN, PART = b"/scratch/out.h5", b"/scratch/rank%d.log", b"/scratch/part"
RANKS = 8


def log(path: Path, *, posix: list[dict[str, Any]], mpiio: list[dict[str, Any]], exe: bytes = b"app") -> Path:
    names = {record_id(name): name for name in (SHARED, PART, *(OWN % rank for rank in range(RANKS)))}
    modules = {
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", posix, 4)]),
        "MPI-IO": ModuleSpec(version=3, streams=[encode_counters("MPI-IO", mpiio, 3)]),
    }
    return write_log(path, job=JobSpec(nprocs=RANKS, exe=exe), names=names, modules=modules)


def posix(name: bytes, rank: int, count: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "record_id": record_id(name), "rank": rank, "POSIX_OPENS": 1, "POSIX_WRITES": count,
        "POSIX_BYTES_WRITTEN": 1000 * count, "POSIX_SIZE_WRITE_100_1K": count, "POSIX_FILE_NOT_ALIGNED": count // 2,
        "POSIX_MAX_BYTE_WRITTEN": 1000 * count - 1, "POSIX_F_WRITE_TIME": seconds, **more,
    }  # fmt: skip


def found(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main(["summary", str(path), "--show", "findings", "--json"]) == 0
    return {each["code"]: each for each in json.loads(capsys.readouterr().out)["tables"]["findings"]}


def test_one_rank_that_writes_a_shared_file_for_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extremes = {
        "POSIX_SLOWEST_RANK": 2, "POSIX_SLOWEST_RANK_BYTES": 1_800_000, "POSIX_F_SLOWEST_RANK_TIME": 9.0,
        "POSIX_FASTEST_RANK": 5, "POSIX_FASTEST_RANK_BYTES": 0, "POSIX_F_FASTEST_RANK_TIME": 0.5,
    }  # fmt: skip
    mine = [posix(SHARED, -1, 2000, 12.0, **extremes), *(posix(OWN % rank, rank, 10, 0.01) for rank in range(RANKS))]
    called = {"record_id": record_id(SHARED), "rank": -1, "MPIIO_COLL_WRITES": 80, "MPIIO_BYTES_WRITTEN": 2_000_000,
              "MPIIO_F_WRITE_TIME": 160.0, "MPIIO_F_SLOWEST_RANK_TIME": 20.0}  # fmt: skip
    path = log(tmp_path / "a.darshan", posix=mine, mpiio=[called], exe=b"app --api-key S3CRET --lr 1 TOKEN=S3CRET")
    assert main(["summary", str(path), "--details"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the slowest rank, 0, spent 20.000 s of 60.864 s in MPIIO calls; the mean of the ranks is 20.000 s" in said
    assert "app --api-key *** --lr 1 TOKEN=***" in said
    assert "S3CRET" not in said
    judged = found(capsys, path)
    assert judged.keys() >= {"small-writes", "misaligned", "shared-file", "rank-imbalance"}
    assert judged["small-writes"]["values"] == {
        "small_writes": 2080, "small_writes_pct": 100.0, "small_writes_in_shared": 2000,
    }  # fmt: skip
    assert judged["misaligned"]["files"][0] == judged["shared-file"]["files"][0] == SHARED.decode()
    uneven = judged["rank-imbalance"]
    assert (uneven["values"]["slowest_rank"], uneven["values"]["bytes_imbalance_pct"]) == (2, 90.0)
    assert uneven["files"] == [SHARED.decode()]
    assert all(each["at_stake_s"] <= 20.0 for each in judged.values() if each["at_stake_s"])


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("e3sm_io_heatmap_only", {"small-reads", "small-writes", "misaligned", "re-reads", "shared-file"}),
        ("imbalanced-io", {"small-reads", "small-writes", "misaligned", "shared-file", "rank-imbalance"}),
    ],
)
def test_public_logs_have_what_drishti_finds(name: str, codes: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert codes <= found(capsys, recorded(f"darshan-logs/{name}.darshan")).keys()
