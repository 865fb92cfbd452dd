from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.export.darshan_container import COMMAND_BYTES, LogRegions, encode_job, encode_names

START_NS, END_NS = 1_700_000_000_000_000_123, 1_700_000_001_999_999_999


def job(**changes: object) -> tuple[bytes, bool]:
    fields = {
        "start_ns": START_NS, "end_ns": END_NS, "nprocs": 3, "job_id": -7, "exe": "python train.py",
        "metadata": {"lib_ver": "3.5.0", "h": "a=b;c"}, "mounts": [("ext4", "/"), ("lustre", "/scratch")],
    }  # fmt: skip
    return encode_job(**{**fields, **changes})  # type: ignore[arg-type]


def written(path: Path, regions: LogRegions, record: bytes, **options: object) -> Path:
    with open(path, "wb") as file:
        regions.write(file, job=record, names=encode_names([(5, b"/a"), (1 << 63, b"/odd\xff")]), **options)  # type: ignore[arg-type]
    return path


def test_a_log_is_read_back(tmp_path: Path) -> None:
    record, whole = job()
    with LogRegions(tmp_path) as regions:
        for rank in range(3):
            regions.append("STDIO", 2, b"stdio %d;" % rank)
            regions.append("POSIX", 4, b"posix" * 1000)
            regions.append("DXT_POSIX", 2, b"")
            regions.end_streams()
        log = open_log(written(tmp_path / "x.darshan", regions, record, partial=("POSIX", "HEATMAP")))
    assert whole
    assert (log.version, log.compression, log.byte_order) == ("3.41", "zlib", "<")
    assert (log.job.start_ns, log.job.end_ns, log.job.nprocs, log.job.jobid) == (START_NS, END_NS, 3, -7)
    assert (log.job.exe, dict(log.job.metadata)) == ("python train.py", {"lib_ver": "3.5.0", "h": "a=b;c"})
    assert [(mount.fs_type, mount.path) for mount in log.job.mounts] == [("lustre", "/scratch"), ("ext4", "/")]
    assert dict(log.names) == {5: b"/a", 1 << 63: b"/odd\xff"}
    assert {name: (module.version, module.partial) for name, module in log.modules.items()} == {
        "POSIX": (4, True), "STDIO": (2, False),
    }  # fmt: skip
    # a chunk never spans two streams, and each rank has its own
    assert list(log.chunks("STDIO")) == [b"stdio 0;", b"stdio 1;", b"stdio 2;"]
    assert b"".join(log.chunks("POSIX")) == b"posix" * 3000
    assert [path.name for path in tmp_path.iterdir()] == ["x.darshan"]


@pytest.mark.parametrize(
    "changes",
    [
        {"exe": "é" * COMMAND_BYTES},
        {"mounts": [("nfs", f"/{i}" + "m" * 200) for i in range(30)]},
        {"metadata": {"lib_ver": "3.5.0", **{f"key{i}": "v" * 100 for i in range(20)}}},
    ],
)
def test_what_finds_no_room_is_cut_at_whole_entries(tmp_path: Path, changes: dict[str, object]) -> None:
    record, whole = job(**changes)
    assert not whole
    assert len(record) <= 4096
    with LogRegions(tmp_path) as regions:
        log = open_log(written(tmp_path / "x.darshan", regions, record))
    assert log.warnings == ()
    assert log.job.metadata["lib_ver"] == "3.5.0"
    assert all(len(value) in (5, 100) for value in log.job.metadata.values())
    assert all(len(mount.path) > 200 or mount.path in ("/", "/scratch") for mount in log.job.mounts)
    assert log.job.exe.strip("é") in ("", "python train.py")
    assert log.job.exe
    assert log.job.mounts
