"""The container reader: over written logs of every version, and against pydarshan on every real one."""

import bz2
import gzip
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.log import CONTAINERS, MODULE_NAMES, DarshanLog, Mount, decode_job, open_log
from dxt_replay.profiler_merge.darshan.regions import PIECE_BYTES, DamagedLogError, pieces
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.units import NS_PER_S
from tests.darshan_oracle import answer, log_id, shared_logs
from tests.darshan_writer import MODULE_IDS, JobSpec, ModuleSpec, write_log
from tests.examples import examples

VERSIONS = tuple(CONTAINERS)
EVERY_FORM = [(v, o, c) for v in VERSIONS for o in "<>" for c in ("zlib", "bzip2", "none")]
NAMES = {1: b"/scratch/a", 2: b"/scratch/\xff\xfe/odd\nname", 2**64 - 1: b"<STDIN>"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "job.darshan"


class TestContainer:
    @pytest.mark.parametrize(("version", "byte_order", "compression"), EVERY_FORM)
    def test_every_form_reads_the_same(self, target: Path, version: str, byte_order: str, compression: str) -> None:
        posix, stdio = (
            ModuleSpec(version=4, streams=[b"posix 0", b"posix 1"]),
            ModuleSpec(version=2, streams=[b"stdio"]),
        )
        write_log(
            target,
            version=version,
            byte_order=byte_order,
            compression=compression,
            names=[{1: NAMES[1]}, NAMES],
            modules={"POSIX": posix, "STDIO": stdio},
            partial=["STDIO"],
        )
        log = open_log(target)
        assert (log.version, log.byte_order, log.compression, log.path) == (version, byte_order, compression, target)
        assert dict(log.names) == NAMES
        assert {name: (m.version, m.partial) for name, m in log.modules.items()} == {
            "POSIX": (4, False),
            "STDIO": (2, True),
        }
        assert b"".join(log.chunks("POSIX")) == b"posix 0posix 1"
        assert b"".join(log.chunks("STDIO")) == b"stdio"
        assert len(log.warnings) == 1
        assert log.warnings[0].startswith("STDIO of ")
        assert "incomplete" in log.warnings[0]
        job = log.job
        assert (job.uid, job.jobid, job.nprocs, job.exe) == (1000, 4242, 2, "python train.py")
        assert job.metadata == {"lib_ver": "3.5.0", "h": "romio_no_indep_rw=true"}
        assert job.mounts == (Mount(path="/scratch", fs_type="lustre"), Mount(path="/", fs_type="ext4"))
        wide = version == "3.41"
        assert job.has_nsec is wide
        assert job.start_ns == 1_700_000_000 * NS_PER_S + (123_456_789 if wide else 0)
        assert job.run_time_s == pytest.approx(60.864197532 if wide else 61)

    @pytest.mark.parametrize("version", VERSIONS)
    def test_module_ids_shift_with_the_version(self, target: Path, version: str) -> None:
        absent = {"3.00": {"H5D", "PNETCDF_VAR"}, "3.10": {"H5D", "PNETCDF_VAR"}, "3.41": set()}.get(
            version, {"PNETCDF_VAR"}
        )
        slots = 64 if version == "3.41" else 16
        names = [name for name in MODULE_IDS if name not in absent][: slots - 1]
        modules = {name: ModuleSpec(version=1 + MODULE_IDS[name], streams=[name.encode()]) for name in names}
        log = open_log(write_log(target, version=version, modules=modules, partial=names))
        assert list(log.modules) == names
        assert all(log.modules[name].partial and log.modules[name].version == 1 + MODULE_IDS[name] for name in names)
        assert all(b"".join(log.chunks(name)) == name.encode() for name in names)

    def test_streams_stay_apart_and_bounded(self, target: Path) -> None:
        large = (os.urandom(2000) * (PIECE_BYTES // 1000))[: PIECE_BYTES + 100]
        log = open_log(write_log(target, modules={"POSIX": ModuleSpec(version=4, streams=[b"a" * 10, large, b"b"])}))
        assert [len(chunk) for chunk in log.chunks("POSIX")] == [10, PIECE_BYTES, 100, 1]

    def test_absent_module_has_no_chunks(self, target: Path) -> None:
        assert list(open_log(write_log(target)).chunks("POSIX")) == []

    def test_unknown_module_is_named(self, target: Path) -> None:
        write_log(target, modules={"DAOS": ModuleSpec(version=1, streams=[b"x"])})
        head = bytearray(target.read_bytes())
        daos, later = 48 + 16 * MODULE_IDS["DAOS"], 48 + 16 * 40
        head[later : later + 16] = head[daos : daos + 16]
        target.write_bytes(head)
        log = open_log(target)
        assert "module 40" in log.modules
        assert any("module 40" in warning and "not read" in warning for warning in log.warnings)

    def test_partial_module_without_data_is_named(self, target: Path) -> None:
        log = open_log(write_log(target, partial=["DXT_POSIX"]))
        assert not log.modules
        assert "DXT_POSIX" in log.warnings[0]
        assert "no data" in log.warnings[0]

    @settings(max_examples=examples(40))
    @given(names=st.dictionaries(st.integers(0, 2**64 - 1), st.binary(min_size=1).filter(lambda n: b"\0" not in n)))
    def test_names_survive_exactly(self, names: dict[int, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
        target = tmp_path_factory.mktemp("names") / "job.darshan"
        for version in ("3.00", "3.21"):
            assert dict(open_log(write_log(target, version=version, names=names)).names) == names

    def test_an_empty_name_gives_way_to_a_real_one(self, target: Path) -> None:
        log = open_log(write_log(target, names=[{5: b""}, {5: b"/real"}, {5: b"/late"}]))
        assert dict(log.names) == {5: b"/real"}


class TestJob:
    def test_a_command_line_may_hold_line_breaks(self, target: Path) -> None:
        job = JobSpec(exe=b"python -c import os\n\tprint(1)\nprint(2)")
        log = open_log(write_log(target, job=job))
        assert log.job.exe == "python -c import os\n\tprint(1)\nprint(2)"
        assert len(log.job.mounts) == 2

    def test_no_mounts_and_no_metadata(self, target: Path) -> None:
        log = open_log(write_log(target, job=JobSpec(mounts=(), metadata=b"")))
        assert (log.job.exe, log.job.mounts, dict(log.job.metadata)) == ("python train.py", (), {})
        assert log.mount_of(b"/a").fs_type == "UNKNOWN"

    def test_a_mount_table_cut_at_the_end_loses_its_last_line_only(self, target: Path) -> None:
        mounts = [(b"ext4", b"/"), *((b"nfs", b"/home/user%03d" % i) for i in range(300))]
        log = open_log(write_log(target, job=JobSpec(mounts=mounts)))
        assert log.job.exe == "python train.py"
        assert 100 < len(log.job.mounts) < 301

    def test_a_killed_process_has_no_run_time(self, target: Path) -> None:
        log = open_log(write_log(target, compression="none", job=JobSpec(end_s=0, end_ns=0)))
        assert log.job.run_time_s is None
        assert any("killed" in warning for warning in log.warnings)

    def test_a_clock_set_back_gives_no_run_time(self, target: Path) -> None:
        log = open_log(write_log(target, job=JobSpec(end_s=1_600_000_000)))
        assert log.job.run_time_s is None
        assert any("ends before it starts" in warning for warning in log.warnings)

    def test_the_old_record_in_the_new_container(self) -> None:
        data = struct.pack("<5q1024s", 1000, 1_647_000_000, 1_647_000_009, 4, 77, b"lib_ver=3.4.0-pre1\n")
        data += b"./mpi-io-test -f file\0"
        job, warnings = decode_job(data, "<", has_nsec=True, place="x.darshan")
        assert (job.nprocs, job.jobid, job.exe) == (4, 77, "./mpi-io-test -f file")
        assert job.metadata == {"lib_ver": "3.4.0-pre1"}
        assert not job.has_nsec
        assert job.run_time_s == 10
        assert "pre-release" in warnings[0]

    @pytest.mark.parametrize("job", [JobSpec(nprocs=0), JobSpec(nprocs=1 << 40), JobSpec(start_s=-5)])
    def test_garbage_is_an_error_that_names_it(self, target: Path, job: JobSpec) -> None:
        write_log(target, job=job)
        with pytest.raises(LogError, match=r"job record of .*nprocs .*start .*copy it again"):
            open_log(target)


class TestMounts:
    @pytest.fixture
    def log(self, target: Path) -> DarshanLog:
        mounts = [(b"rootfs", b"/"), (b"lustre", b"/lus"), (b"nfs", b"/lus/home"), (b"odd", b"/\xff")]
        return open_log(write_log(target, job=JobSpec(mounts=mounts)))

    @pytest.mark.parametrize(
        ("path", "fs_type"),
        [
            (b"/lus/a", "lustre"),
            (b"/lus", "lustre"),
            (b"/lustre/a", "rootfs"),
            (b"/lus/home/x", "nfs"),
            (b"/lus/homes/x", "lustre"),
            (b"/\xff/x", "odd"),
            (b"<STDIN>", "UNKNOWN"),
            (b"relative", "UNKNOWN"),
        ],
    )
    def test_longest_whole_directory_wins(self, log: DarshanLog, path: bytes, fs_type: str) -> None:
        assert log.mount_of(path).fs_type == fs_type


class TestErrors:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "empty"),
            (b"\x89PNG\r\n\x1a\n" + bytes(2000), "not a Darshan log"),
            (b"3.41", "not a Darshan log"),
            (gzip.compress(b"2.05\0", mtime=0), "Darshan 1 or 2"),
            (bz2.compress(b"2.05\0"), "Darshan 1 or 2"),
            (b"9.99".ljust(8, b"\0") + struct.pack("<q", 6567223) + bytes(2000), "version '9.99'"),
            (b"3.41".ljust(8, b"\0") + struct.pack("<q", 6567223) + bytes(100), "ends inside its header"),
            (b"3.41".ljust(8, b"\0") + struct.pack("<q", 6567223) + b"\x07" + bytes(2000), "compressed by method 7"),
            (b"3.41".ljust(8, b"\0") + struct.pack("<q", 6567223) + bytes(1312), "job record .* 0 bytes"),
        ],
    )
    def test_no_log(self, target: Path, content: bytes, message: str) -> None:
        target.write_bytes(content)
        with pytest.raises(LogError, match=message):
            open_log(target)

    def test_missing_directory_and_fifo(self, tmp_path: Path) -> None:
        with pytest.raises(LogError, match="cannot be read: No such file"):
            open_log(tmp_path / "absent.darshan")
        with pytest.raises(LogError, match="not a regular file"):
            open_log(tmp_path)
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(LogError, match="not a regular file"):
            open_log(tmp_path / "fifo")
        with pytest.raises(LogError, match="cannot be read"):
            open_log("nul\0byte")

    @pytest.mark.parametrize(("offset", "length"), [(2**63, 10), (10, 10), (1400, 2**63), (2**64 - 1, 2**64 - 1)])
    def test_a_region_outside_the_file(self, target: Path, offset: int, length: int) -> None:
        write_log(target, modules={"POSIX": ModuleSpec(version=4, streams=[b"x"])}, names=NAMES)
        content = bytearray(target.read_bytes())
        struct.pack_into("<QQ", content, 48 + 16 * MODULE_IDS["POSIX"], offset, length)
        target.write_bytes(content)
        log = open_log(target)
        assert any(f"outside the file (bytes {offset} to" in warning for warning in log.warnings)
        assert dict(log.names) == NAMES
        with pytest.raises(DamagedLogError):
            list(log.chunks("POSIX"))

    def test_a_cut_log_keeps_what_is_there(self, target: Path) -> None:
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

    def test_a_damaged_name_table(self, target: Path) -> None:
        write_log(target, compression="none", names={1: b"/a", 2: b"/bcd"})
        target.write_bytes(target.read_bytes()[:-1] + b"!")
        log = open_log(target)
        assert dict(log.names) == {1: b"/a"}
        assert "the name table ends inside a name" in log.warnings[0]
        assert (log.describe(1), log.describe(2)) == ("/a", "record 2")

    @pytest.mark.parametrize("compression", ["zlib", "bzip2"])
    def test_a_damaged_stream_gives_what_comes_before(self, target: Path, compression: str) -> None:
        module = ModuleSpec(version=4, streams=[b"first", b"second"])
        write_log(target, modules={"POSIX": module}, compression=compression)
        target.write_bytes(target.read_bytes()[:-1] + b"!")
        chunks = open_log(target).chunks("POSIX")
        assert next(chunks) == b"first"
        with pytest.raises(DamagedLogError, match=r"POSIX of .* cannot be decompressed"):
            list(chunks)

    @pytest.mark.parametrize("compression", ["zlib", "bzip2"])
    def test_a_stream_that_ends_early(self, target: Path, compression: str) -> None:
        compress = zlib.compress if compression == "zlib" else bz2.compress
        target.write_bytes(compress(b"data" * 100)[:-6])
        with pytest.raises(DamagedLogError, match="ends early"):
            list(pieces(target, 0, target.stat().st_size, compression, region="POSIX"))

    def test_a_damaged_job_record(self, target: Path) -> None:
        write_log(target, names=NAMES)
        content = bytearray(target.read_bytes())
        names_at = struct.unpack_from("<Q", content, 32)[0]
        content[names_at - 1] ^= 1  # The last byte of the stream's checksum.
        target.write_bytes(content)
        with pytest.raises(DamagedLogError, match=r"job record of .* cannot be decompressed"):
            open_log(target)

    def test_a_file_that_shrinks_while_read(self, target: Path) -> None:
        target.write_bytes(b"abc")
        with pytest.raises(DamagedLogError, match="ends before the region does"):
            list(pieces(target, 0, 10, "none", region="POSIX"))

    @pytest.mark.parametrize("compression", ["zlib", "bzip2"])
    def test_a_bomb_stops(self, target: Path, compression: str) -> None:
        compress = zlib.compress if compression == "zlib" else bz2.compress
        bomb = compress(bytes(100 << 20))
        target.write_bytes(bomb)
        sizes: list[int] = []
        with pytest.raises(DamagedLogError, match="grows from"):
            sizes.extend(map(len, pieces(target, 0, len(bomb), compression, region="POSIX")))
        assert max(sizes) <= PIECE_BYTES
        assert sum(sizes) <= max(64 << 20, 100 * len(bomb))


@pytest.mark.parametrize("path", shared_logs(), ids=log_id)
def test_real_logs_agree_with_pydarshan(path: Path) -> None:
    log, theirs = open_log(path), answer(path)
    job = log.job
    times = (job.start_ns // NS_PER_S, job.start_ns % NS_PER_S, job.end_ns // NS_PER_S, job.end_ns % NS_PER_S)
    assert [job.uid, *times, job.nprocs, job.jobid] == theirs["job"].tolist()
    # pydarshan subtracts epochs in doubles.
    assert job.run_time_s == pytest.approx(float(theirs["run_time"]), abs=1e-6)
    assert job.exe == str(theirs["exe"])
    assert [f"{key}={value}" for key, value in job.metadata.items()] == theirs["metadata"].tolist()
    assert sorted(f"{mount.fs_type}\t{mount.path}" for mount in job.mounts) == theirs["mounts"].tolist()
    names = zip(theirs["name_ids"].tolist(), theirs["names"].tolist(), strict=True)
    assert {key: name.decode() for key, name in log.names.items()} == dict(names)
    modules = sorted(f"{m.name} {m.version} {m.partial}" for m in log.modules.values())
    assert modules == theirs["modules"].tolist()
    assert set(log.modules) <= set(MODULE_NAMES)
    assert all(m.partial == any(w.startswith(f"{m.name} of ") for w in log.warnings) for m in log.modules.values())


def test_the_empty_log() -> None:
    path = next((path for path in shared_logs() if path.stem == "empty_log"), None)
    if path is None:
        pytest.skip("the shared logs are not beside the checkout")
    log = open_log(path)
    assert (dict(log.modules), dict(log.names), log.warnings, log.job.nprocs) == ({}, {}, (), 4)
    assert np.isclose(log.job.run_time_s or 0, 0.038326504)
