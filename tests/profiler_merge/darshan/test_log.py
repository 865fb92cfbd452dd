"""The container reader over written logs of every version; test_counters.py has the real ones."""

import bz2
import gzip
import os
import struct
import zlib
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.darshan.log import CONTAINERS, PIECE_BYTES, DamagedLogError, decode_job, open_log, pieces
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.units import NS_PER_S
from tests.darshan_writer import MODULE_IDS, JobSpec, ModuleSpec, write_log

VERSIONS = tuple(CONTAINERS)
EVERY_FORM = [(v, o, c) for v in VERSIONS for o in "<>" for c in ("zlib", "bzip2", "none")]
NAMES = {1: b"/scratch/a", 2: b"/scratch/\xff\xfe/odd\nname", 2**64 - 1: b"<STDIN>"}
COMPRESS = {"zlib": zlib.compress, "bzip2": bz2.compress}
HEAD = b"3.41".ljust(8, b"\0") + struct.pack("<q", 6567223)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "job.darshan"


@pytest.mark.parametrize(("version", "byte_order", "compression"), EVERY_FORM)
def test_every_form_reads_the_same(target: Path, version: str, byte_order: str, compression: str) -> None:
    modules = {
        "POSIX": ModuleSpec(version=4, streams=[b"posix 0", b"posix 1"]),
        "STDIO": ModuleSpec(version=2, streams=[b"stdio"]),
    }
    form = {"version": version, "byte_order": byte_order, "compression": compression}
    write_log(target, **form, names=[{1: b""}, NAMES, {1: b"/late"}], modules=modules, partial=["STDIO"])
    log = open_log(target)  # a rank that knew only the id of a file wrote an empty name
    assert (log.version, log.byte_order, log.compression, log.path) == (*form.values(), target)
    assert dict(log.names) == NAMES
    assert {name: (m.version, m.partial) for name, m in log.modules.items()} == {
        "POSIX": (4, False),
        "STDIO": (2, True),
    }
    assert [b"".join(log.chunks(name)) for name in ("POSIX", "STDIO", "DFS")] == [b"posix 0posix 1", b"stdio", b""]
    (warning,) = log.warnings
    assert warning.startswith("STDIO of ")
    assert "incomplete" in warning
    job = log.job
    assert (job.uid, job.jobid, job.nprocs, job.exe) == (1000, 4242, 2, "python train.py")
    assert job.metadata == {"lib_ver": "3.5.0", "h": "romio_no_indep_rw=true"}
    assert [(mount.path, mount.fs_type) for mount in job.mounts] == [("/scratch", "lustre"), ("/", "ext4")]
    wide = version == "3.41"
    assert job.has_nsec is wide
    assert job.start_ns == 1_700_000_000 * NS_PER_S + (123_456_789 if wide else 0)
    assert job.run_time_s == pytest.approx(60.864197532 if wide else 61)


@pytest.mark.parametrize("version", VERSIONS)
def test_module_ids_shift_with_the_version(target: Path, version: str) -> None:
    absent = {"3.00": {"H5D", "PNETCDF_VAR"}, "3.10": {"H5D", "PNETCDF_VAR"}, "3.41": set()}.get(
        version, {"PNETCDF_VAR"}
    )
    names = [name for name in MODULE_IDS if name not in absent][: (64 if version == "3.41" else 16) - 1]
    modules = {name: ModuleSpec(version=1 + MODULE_IDS[name], streams=[name.encode()]) for name in names}
    log = open_log(write_log(target, version=version, modules=modules, partial=names))
    assert list(log.modules) == names
    assert all(log.modules[name].partial and log.modules[name].version == 1 + MODULE_IDS[name] for name in names)
    assert all(b"".join(log.chunks(name)) == name.encode() for name in names)


def test_streams_stay_apart_and_bounded(target: Path) -> None:
    large = (os.urandom(2000) * (PIECE_BYTES // 1000))[: PIECE_BYTES + 100]
    log = open_log(write_log(target, modules={"POSIX": ModuleSpec(version=4, streams=[b"a" * 10, large, b"b"])}))
    assert [len(chunk) for chunk in log.chunks("POSIX")] == [10, PIECE_BYTES, 100, 1]


def test_unknown_and_empty_modules_are_named(target: Path) -> None:
    write_log(target, modules={"DAOS": ModuleSpec(version=1, streams=[b"x"])}, partial=["DXT_POSIX"])
    head = bytearray(target.read_bytes())
    daos, later = 48 + 16 * MODULE_IDS["DAOS"], 48 + 16 * 40
    head[later : later + 16] = head[daos : daos + 16]
    target.write_bytes(head)
    log = open_log(target)
    assert list(log.modules) == ["DAOS", "module 40"]
    assert ["DXT_POSIX" in text and "no data" in text for text in log.warnings] == [True, False]
    assert "module 40" in log.warnings[1]
    assert "not read" in log.warnings[1]


@pytest.mark.parametrize(
    ("job", "exe", "mounts", "run_time_s", "said"),
    [
        (
            JobSpec(exe=b"python -c import os\n\tprint(1)\nprint(2)"),
            "python -c import os\n\tprint(1)\nprint(2)",
            2,
            60.864,
            "",
        ),
        (JobSpec(mounts=(), metadata=b""), "python train.py", 0, 60.864, ""),
        # A table that is cut at the end of the record loses its last line only.
        (JobSpec(mounts=[(b"nfs", b"/home/user%03d" % i) for i in range(300)]), "python train.py", 150, 60.864, ""),
        (JobSpec(end_s=0, end_ns=0), "python train.py", 2, None, "killed"),
        (JobSpec(end_s=1_600_000_000), "python train.py", 2, None, "ends before it starts"),
    ],
)
def test_job_records(target: Path, job: JobSpec, exe: str, mounts: int, run_time_s: float | None, said: str) -> None:
    log = open_log(write_log(target, job=job))
    assert log.job.exe == exe
    assert mounts <= len(log.job.mounts) <= mounts + 20 * (mounts > 2)
    assert log.job.run_time_s == (None if run_time_s is None else pytest.approx(run_time_s, abs=0.001))
    assert [said in text for text in log.warnings] == [True] * bool(said)


def test_the_old_record_in_the_new_container() -> None:
    data = struct.pack("<5q1024s", 1000, 1_647_000_000, 1_647_000_009, 4, 77, b"lib_ver=3.4.0-pre1\n")
    job, warnings = decode_job(data + b"./mpi-io-test -f file\0", "<", has_nsec=True, place="x.darshan")
    assert (job.nprocs, job.jobid, job.exe) == (4, 77, "./mpi-io-test -f file")
    assert job.metadata == {"lib_ver": "3.4.0-pre1"}
    assert (job.has_nsec, job.run_time_s) == (False, 10)
    assert "pre-release" in warnings[0]


@pytest.mark.parametrize(
    ("path", "fs_type"),
    [
        (b"/lus/a", "lustre"), (b"/lus", "lustre"), (b"/lustre/a", "rootfs"), (b"/lus/home/x", "nfs"),
        (b"/lus/homes/x", "lustre"), (b"/\xff/x", "odd"), (b"<STDIN>", "UNKNOWN"), (b"relative", "UNKNOWN"),
    ],
)  # fmt: skip
def test_the_longest_whole_directory_is_the_mount(target: Path, path: bytes, fs_type: str) -> None:
    mounts = [(b"rootfs", b"/"), (b"lustre", b"/lus"), (b"nfs", b"/lus/home"), (b"odd", b"/\xff")]
    assert open_log(write_log(target, job=JobSpec(mounts=mounts))).mount_of(path).fs_type == fs_type


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(2000), "not a Darshan log"),
        (b"3.41", "not a Darshan log"),
        (gzip.compress(b"2.05\0", mtime=0), "Darshan 1 or 2"),
        (bz2.compress(b"2.05\0"), "Darshan 1 or 2"),
        (HEAD.replace(b"3.41", b"9.99") + bytes(2000), "version '9.99'"),
        (HEAD + bytes(100), "ends inside its header"),
        (HEAD + b"\x07" + bytes(2000), "compressed by method 7"),
        (HEAD + bytes(1312), "job record .* 0 bytes"),
        (JobSpec(nprocs=0), r"job record of .*nprocs .*start .*copy it again"),
        (JobSpec(nprocs=1 << 40), r"job record of .*nprocs .*start .*copy it again"),
        (JobSpec(start_s=-5), r"job record of .*nprocs .*start .*copy it again"),
    ],
)
def test_what_is_no_log(target: Path, content: bytes | JobSpec, message: str) -> None:
    if isinstance(content, JobSpec):
        write_log(target, job=content)
    else:
        target.write_bytes(content)
    with pytest.raises(LogError, match=message):
        open_log(target)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, message in (
        (tmp_path / "absent.darshan", "cannot be read: No such file"), (tmp_path, "not a regular file"),
        (tmp_path / "fifo", "not a regular file"), ("nul\0byte", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(LogError, match=message):
            open_log(path)


@pytest.mark.parametrize(("offset", "length"), [(2**63, 10), (10, 10), (1400, 2**63), (2**64 - 1, 2**64 - 1)])
def test_a_region_outside_the_file(target: Path, offset: int, length: int) -> None:
    write_log(target, modules={"POSIX": ModuleSpec(version=4, streams=[b"x"])}, names=NAMES)
    content = bytearray(target.read_bytes())
    struct.pack_into("<QQ", content, 48 + 16 * MODULE_IDS["POSIX"], offset, length)
    target.write_bytes(content)
    log = open_log(target)
    assert any(f"outside the file (bytes {offset} to" in warning for warning in log.warnings)
    assert dict(log.names) == NAMES
    with pytest.raises(DamagedLogError):
        list(log.chunks("POSIX"))


def test_a_cut_log_keeps_what_is_there(target: Path) -> None:
    stream = os.urandom(5000)
    write_log(target, names=NAMES, modules={"POSIX": ModuleSpec(version=4, streams=[stream])}, compression="none")
    target.write_bytes(target.read_bytes()[:-1000])
    log = open_log(target)
    assert "(missing: 1,000 of 5,000 compressed bytes)" in log.warnings[0]
    chunks = log.chunks("POSIX")
    assert next(chunks) == stream[:4000]
    with pytest.raises(DamagedLogError, match="the file ends before the region does") as raised:
        next(chunks)
    assert raised.value.missing == "1,000 of 5,000 compressed bytes"
    assert dict(log.names) == NAMES


def test_a_damaged_name_table_and_job_record(target: Path) -> None:
    write_log(target, compression="none", names={1: b"/a", 2: b"/bcd"})
    target.write_bytes(target.read_bytes()[:-1] + b"!")
    log = open_log(target)
    assert dict(log.names) == {1: b"/a"}
    assert "the name table ends inside a name" in log.warnings[0]
    assert (log.describe(1), log.describe(2)) == ("/a", "record 2")
    content = bytearray(write_log(target, names=NAMES).read_bytes())
    content[struct.unpack_from("<Q", content, 32)[0] - 1] ^= 1  # the last byte of the checksum of the job's stream
    target.write_bytes(content)
    with pytest.raises(DamagedLogError, match=r"job record of .* cannot be decompressed"):
        open_log(target)


@pytest.mark.parametrize("compression", ["zlib", "bzip2"])
def test_streams_that_are_damaged_end_early_or_are_bombs(target: Path, compression: str) -> None:
    module = ModuleSpec(version=4, streams=[b"first", b"second"])
    write_log(target, modules={"POSIX": module}, compression=compression)
    target.write_bytes(target.read_bytes()[:-1] + b"!")
    chunks = open_log(target).chunks("POSIX")
    assert next(chunks) == b"first"
    with pytest.raises(DamagedLogError, match=r"POSIX of .* cannot be decompressed"):
        list(chunks)
    target.write_bytes(COMPRESS[compression](b"data" * 100)[:-6])
    with pytest.raises(DamagedLogError, match="ends early"):
        list(pieces(target, 0, target.stat().st_size, compression, region="POSIX"))
    bomb, sizes = COMPRESS[compression](bytes(70 << 20)), list[int]()
    target.write_bytes(bomb)
    with pytest.raises(DamagedLogError, match="grows from"):
        sizes.extend(map(len, pieces(target, 0, len(bomb), compression, region="POSIX")))
    assert max(sizes) <= PIECE_BYTES
    assert sum(sizes) <= max(64 << 20, 100 * len(bomb))
