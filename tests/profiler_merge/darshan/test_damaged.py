"""Damaged logs: whatever is wrong with a file, reading it ends at the damage or raises one of our errors.

Nothing else may escape, a log that is cut short must not pass for a whole one, and no lie in a header may cost memory.
"""

import hashlib
import random
import resource
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.darshan.counters import COUNTER_MODULES, read_counters, read_lustre
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, read_dxt
from dxt_replay.profiler_merge.darshan.log import CONTAINERS, open_log
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.errors import DxtReplayError
from tests.darshan_oracle import SHARED
from tests.darshan_writer import (
    MODULE_IDS,
    DxtRecord,
    JobSpec,
    LustreSpec,
    ModuleSpec,
    encode_counters,
    encode_dxt,
    encode_lustre,
    posix_rows,
    write_log,
)

BOUND_BYTES = 400 << 20
"""More address space than reading any of these logs may take."""

RECORDS = [
    DxtRecord(record_id=1, rank=0, reads=[(n * 10, 10, n + 0.25, n + 0.5, 7) for n in range(6)]),
    DxtRecord(record_id=2, rank=0, writes=[(0, 5, 1.0, 2.0, 7)], reads=[(0, 0, 2.5, 2.5, 8)]),
]


def whole_log(target: Path) -> Path:
    """A log with every module, uncompressed, so that a flipped bit gets past the checksums and into the decoders."""
    orders = ">"
    counters = {
        module: ModuleSpec(version=version, streams=[encode_counters(module, [{"record_id": 1}], version, orders)])
        for module, version in (("MPI-IO", 3), ("STDIO", 2), ("H5F", 3), ("H5D", 2))
    }
    component = (1 << 20, 2, 0, 0, 0, -1, 0, b"pool")
    dxt = {
        name: ModuleSpec(version=version, streams=[encode_dxt(RECORDS, name, version, orders)])
        for name, version in (("DXT_POSIX", 2), ("DXT_MPIIO", 2))
    }
    lustre = encode_lustre([LustreSpec(record_id=1, components=[component], ost_ids=[5, 6])], 2, orders)
    posix = encode_counters("POSIX", posix_rows(RECORDS), 4, orders)
    modules = {
        **counters,
        **dxt,
        "POSIX": ModuleSpec(version=4, streams=[posix]),
        "LUSTRE": ModuleSpec(version=2, streams=[lustre]),
    }
    names = {1: b"/scratch/a", 2: b"/scratch/\xff\n"}
    return write_log(target, byte_order=orders, compression="none", names=names, modules=modules)


def dxt_log(target: Path) -> Path:
    """A compressed log of the old container."""
    modules = {"DXT_POSIX": ModuleSpec(version=1, streams=[encode_dxt(RECORDS), encode_dxt(RECORDS)])}
    return write_log(target, version="3.00", names={1: b"/a", 2: b"/b"}, modules=modules)


def shared(relative: str) -> Callable[[Path], Path]:
    def copy(target: Path) -> Path:
        source = SHARED / relative
        if not source.exists():
            pytest.skip("the shared logs are not beside the checkout")
        target.write_bytes(source.read_bytes())
        return target

    return copy


LOGS = {
    "every module": whole_log,
    "old container": dxt_log,
    "sample-dxt-simple": shared("darshan-logs/sample-dxt-simple.darshan"),
    "captured": shared("captures/candle/job.darshan"),
}
COMPRESSED = ("old container", "sample-dxt-simple", "captured")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "job.darshan"


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """No more address space than BOUND_BYTES beyond what is in use: what needs more fails with a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + BOUND_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_everything(path: Path) -> str:
    """A digest of all that the readers give, with the damage that they found before it."""
    log = open_log(path)
    digest = hashlib.sha256(repr((log.job, log.job.run_time_s, dict(log.names))).encode())
    for module in DXT_MODULES:
        for block in read_dxt(log, module):
            digest.update(repr((module, block.hostnames)).encode())
            _add_arrays(digest, block)
    for module in COUNTER_MODULES:
        table = read_counters(log, module)
        if table is not None:
            digest.update(module.encode())
            _add_arrays(digest, table)
            for column in (*table.counters.values(), *table.fcounters.values()):
                digest.update(column.tobytes())
    for layout in read_lustre(log):
        digest.update(repr(layout).encode())
    # Modules of no interest here are only listed.
    digest.update(repr([(m.name, m.version, m.partial) for m in log.modules.values()]).encode())
    found = " ".join(log.damage)
    assert bool(found) == any(text.startswith(f"{path} is damaged") for text in log.warnings)
    return f"{found} {digest.hexdigest()}".strip()


def _add_arrays(digest: "hashlib._Hash", columns: object) -> None:
    for column in fields(columns):  # type: ignore[arg-type]
        value = getattr(columns, column.name)
        if isinstance(value, np.ndarray):
            digest.update(value.tobytes())


def outcome(path: Path) -> str:
    """The digest, "damaged" or "error"; anything but one of our errors fails the test."""
    try:
        *damage, digest = read_everything(path).split()
        return "damaged" if damage else digest
    except DxtReplayError as error:
        message = str(error)
    assert str(path) in message, f"it does not say which file: {message}"
    return "error"


def check_truncations(target: Path, step: int) -> None:
    content = target.read_bytes()
    for length in range(0, len(content), step):
        target.write_bytes(content[:length])
        assert outcome(target) in ("error", "damaged"), f"cut to {length} bytes it passes for whole"


def check_flips(target: Path, positions: list[int], compressed: bool) -> None:
    content = target.read_bytes()
    sound = read_everything(target)
    head = CONTAINERS[open_log(target).version].header_bytes
    generator = random.Random(4)
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 1 << generator.randrange(8)
        target.write_bytes(damaged)
        found = outcome(target)
        if compressed and position >= head:
            assert found in (sound, "error", "damaged"), f"a flip at {position} of {len(content)} went unnoticed"


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("name", LOGS)
class TestDamage:
    def test_cut_short(self, target: Path, name: str) -> None:
        check_truncations(LOGS[name](target), 97)

    @pytest.mark.slow
    def test_cut_short_at_every_tenth_byte(self, target: Path, name: str) -> None:
        check_truncations(LOGS[name](target), 10)

    def test_flipped_bits(self, target: Path, name: str) -> None:
        size = LOGS[name](target).stat().st_size
        check_flips(target, sorted(random.Random(1).sample(range(size), 60)), name in COMPRESSED)

    @pytest.mark.slow
    def test_flipped_bits_everywhere(self, target: Path, name: str) -> None:
        size = LOGS[name](target).stat().st_size
        check_flips(target, list(range(size)), name in COMPRESSED)

    def test_bytes_of_another_log_in_the_middle(self, target: Path, name: str) -> None:
        content = bytearray(LOGS[name](target).read_bytes())
        sound = read_everything(target)
        middle = (CONTAINERS[open_log(target).version].header_bytes + len(content)) // 2
        content[middle : middle + 64] = random.Random(2).randbytes(64)
        target.write_bytes(content)
        found = outcome(target)
        assert found in ("error", "damaged") if name in COMPRESSED else found != sound


@pytest.mark.usefixtures("bounded_memory")
class TestLies:
    def test_no_log_at_all(self, target: Path) -> None:
        generator = random.Random(3)
        contents = [b"", b"\0" * 5000, b"\x89PNG\r\n\x1a\n" + generator.randbytes(5000)]
        for content in (*contents, *(generator.randbytes(3000) for _ in range(20))):
            target.write_bytes(content)
            assert outcome(target) == "error"
        target.unlink()
        assert outcome(target) == "error"
        target.mkdir()
        assert outcome(target) == "error"

    @pytest.mark.parametrize("version", CONTAINERS)
    @pytest.mark.parametrize("byte_order", ["<", ">"])
    def test_random_header_behind_a_right_start(self, target: Path, version: str, byte_order: str) -> None:
        generator = random.Random(5)
        for compression in (0, 1, 2):
            for _ in range(10):
                start = struct.pack(byte_order + "8sqB", version.encode(), 6567223, compression)
                target.write_bytes(start + generator.randbytes(3000))
                outcome(target)

    @pytest.mark.parametrize("module", ["POSIX", "DXT_POSIX", "LUSTRE"])
    def test_a_bomb(self, target: Path, module: str) -> None:
        """Ten kilobytes that would be ten megabytes of zeros."""
        bomb = zlib.compress(bytes(10 << 20), 9)
        target_size = len(bomb)
        write_log(target, modules={module: ModuleSpec(version=1, streams=[b""])})
        content = bytearray(target.read_bytes())
        struct.pack_into("<QQ", content, 48 + 16 * MODULE_IDS[module], len(content), target_size)
        target.write_bytes(bytes(content) + bomb)
        assert outcome(target) in ("error", "damaged")

    def test_a_bomb_of_names(self, target: Path) -> None:
        write_log(target, names={1: b"a" * (100 << 20)})
        assert outcome(target) == "damaged"
        assert not open_log(target).names

    @pytest.mark.parametrize("module", MODULE_IDS)
    def test_garbage_in_any_module(self, target: Path, module: str) -> None:
        generator = random.Random(6)
        for version in (1, 2):
            for size in (1, 48, 104, 3000):
                data = generator.randbytes(size)
                write_log(target, modules={module: ModuleSpec(version=version, streams=[data])})
                outcome(target)


def cut_log(path: Path, module: str, bytes_cut: int) -> Path:
    """A log of one process whose module ends before its last record does; the compressed stream itself is whole."""
    streams = {
        "DXT_POSIX": encode_dxt(RECORDS),
        "POSIX": encode_counters("POSIX", posix_rows(RECORDS), 4),
        "STDIO": encode_counters("STDIO", [{"record_id": 1, "STDIO_OPENS": 1}, {"record_id": 2}], 2),
    }
    streams[module] = streams[module][:-bytes_cut]
    versions = {"DXT_POSIX": 1, "POSIX": 4, "STDIO": 2}
    modules = {name: ModuleSpec(version=versions[name], streams=[data]) for name, data in streams.items()}
    return write_log(path, names={1: b"/a", 2: b"/b"}, modules=modules, job=JobSpec(nprocs=1))


class TestTheLastRecordEndsEarly:
    @pytest.mark.parametrize(("module", "bytes_cut"), [("DXT_POSIX", 1), ("DXT_POSIX", 40), ("POSIX", 8), ("STDIO", 1)])
    def test_it_is_damage_that_the_capture_reports(self, target: Path, module: str, bytes_cut: int) -> None:
        path = cut_log(target, module, bytes_cut)
        capture = target.with_suffix(".capture")
        made = merge([path], [], capture)
        assert made.operations >= len(RECORDS[0].reads)
        (warning,) = [text for text in made.info.warnings if "ends inside" in text]
        assert warning.startswith("job.darshan is damaged, and the capture lacks what follows the damage: ")
        assert f"{module} ends inside" in warning
        share = made.info.coverage.bytes
        assert share is None if module != "DXT_POSIX" else share is not None

    def test_a_count_beyond_all_jobs_is_damage(self, target: Path) -> None:
        """Two of them add up to more than 64 bits hold."""
        rows = [{"record_id": 1, "POSIX_OPENS": 1, "POSIX_BYTES_READ": (1 << 63) - 5, "POSIX_READS": 1}] * 2
        rows.append({"record_id": 2, "POSIX_OPENS": 1})
        posix = ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])
        write_log(target, names={1: b"/a", 2: b"/b"}, modules={"POSIX": posix}, job=JobSpec(nprocs=1))
        capture = target.with_suffix(".capture")
        made = merge([target], [], capture)
        assert made.files == 0
        problem = f"POSIX record 0 has an impossible POSIX_BYTES_READ for /a ({(1 << 63) - 5})"
        assert any(f"{problem} (missing: 3 records)" in warning for warning in made.info.warnings)
