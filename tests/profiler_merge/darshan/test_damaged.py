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
from dxt_replay.traces.errors import DxtReplayError, LogError
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
from tests.places import recorded
from tests.profiler_merge.darshan.written import PFL

BOUND_BYTES = 400 << 20
"""More address space than reading any of these logs may take."""

RECORDS = [
    DxtRecord(record_id=1, rank=0, reads=[(n * 10, 10, n + 0.25, n + 0.5, 7) for n in range(6)]),
    DxtRecord(record_id=2, rank=0, writes=[(0, 5, 1.0, 2.0, 7)], reads=[(0, 0, 2.5, 2.5, 8)]),
]


def whole_log(target: Path) -> Path:
    """A log with every module, uncompressed, so that a flipped bit gets past the checksums and into the decoders."""
    versions = {"MPI-IO": 3, "STDIO": 2, "H5F": 3, "H5D": 2}
    streams = {name: encode_counters(name, [{"record_id": 1}], version, ">") for name, version in versions.items()}
    for name in DXT_MODULES:
        versions[name], streams[name] = 2, encode_dxt(RECORDS, name, 2, ">")
    versions |= {"POSIX": 4, "LUSTRE": 2}
    streams["POSIX"] = encode_counters("POSIX", posix_rows(RECORDS), 4, ">")
    streams["LUSTRE"] = encode_lustre([LustreSpec(record_id=1, components=PFL[:1], ost_ids=[5])], 2, ">")
    modules = {name: ModuleSpec(version=versions[name], streams=[data]) for name, data in streams.items()}
    names = {1: b"/scratch/a", 2: b"/scratch/\xff\n"}
    return write_log(target, byte_order=">", compression="none", names=names, modules=modules)


def dxt_log(target: Path) -> Path:
    """A compressed log of the old container."""
    modules = {"DXT_POSIX": ModuleSpec(version=1, streams=[encode_dxt(RECORDS), encode_dxt(RECORDS)])}
    return write_log(target, version="3.00", names={1: b"/a", 2: b"/b"}, modules=modules)


def captured(target: Path) -> Path:
    target.write_bytes(recorded("captures/cosmoflow_threads/job.darshan").read_bytes())
    return target


LOGS: dict[str, Callable[[Path], Path]] = {"every module": whole_log, "old container": dxt_log, "captured": captured}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "job.darshan"


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """No more address space than BOUND_BYTES beyond what is in use: what needs more fails with a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + BOUND_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(path: Path) -> str:
    """A digest of all that the readers give, "damaged" or "error"; what is not one of our errors fails the test."""
    try:
        log = open_log(path)
        digest = hashlib.sha256(repr((log.job, log.job.run_time_s, dict(log.names))).encode())
        for module in DXT_MODULES:
            for block in read_dxt(log, module):
                digest.update(repr((module, block.hostnames)).encode())
                for column in (getattr(block, each.name) for each in fields(block)):
                    digest.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
        for table in filter(None, (read_counters(log, module) for module in COUNTER_MODULES)):
            for column in (table.ranks, table.record_ids, *table.counters.values(), *table.fcounters.values()):
                digest.update(column.tobytes())
        digest.update(repr([*read_lustre(log), *log.modules.values()]).encode())
        assert bool(log.damage) == any(text.startswith(f"{path} is damaged") for text in log.warnings)
        return "damaged" if log.damage else digest.hexdigest()
    except DxtReplayError as error:
        return "error" if str(path) in str(error) else f"does not say which file: {error}"


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("step", [97, pytest.param(10, marks=pytest.mark.slow)])
def test_a_cut_log_does_not_pass_for_a_whole_one(target: Path, name: str, step: int) -> None:
    content = LOGS[name](target).read_bytes()
    for length in range(0, len(content), step):
        target.write_bytes(content[:length])
        assert outcome(target) in ("error", "damaged"), f"cut to {length} bytes it passes for whole"


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("most", [60, pytest.param(1 << 20, marks=pytest.mark.slow)])
def test_a_flipped_bit_and_foreign_bytes_are_noticed_behind_a_checksum(target: Path, name: str, most: int) -> None:
    content, generator = LOGS[name](target).read_bytes(), random.Random(4)
    sound, head = outcome(target), CONTAINERS[open_log(target).version].header_bytes
    for position in sorted(generator.sample(range(len(content)), min(most, len(content)))):
        damaged = bytearray(content)
        damaged[position] ^= 1 << generator.randrange(8)
        target.write_bytes(damaged)
        found = outcome(target)
        assert found in (sound, "error", "damaged") or name == "every module" or position < head
    middle = (head + len(content)) // 2
    target.write_bytes(content[:middle] + generator.randbytes(64) + content[middle + 64 :])
    assert outcome(target) in ("error", "damaged") if name != "every module" else outcome(target) != sound


def test_what_is_no_log_at_all(target: Path) -> None:
    generator = random.Random(3)
    for content in (b"", b"\0" * 5000, b"\x89PNG\r\n\x1a\n" + generator.randbytes(5000), generator.randbytes(3000)):
        target.write_bytes(content)
        assert outcome(target) == "error"
    for version in CONTAINERS:
        for order in "<>":
            for number in range(30):
                start = struct.pack(order + "8sqB", version.encode(), 6567223, number % 3)
                target.write_bytes(start + generator.randbytes(3000))
                assert not outcome(target).startswith("does not say")


@pytest.mark.parametrize("module", ["POSIX", "DXT_POSIX", "LUSTRE"])
def test_a_bomb(target: Path, module: str) -> None:
    """Ten kilobytes that would be ten megabytes of zeros; and names that would take all memory."""
    bomb = zlib.compress(bytes(10 << 20), 9)
    write_log(target, modules={module: ModuleSpec(version=1, streams=[b""])})
    content = bytearray(target.read_bytes())
    struct.pack_into("<QQ", content, 48 + 16 * MODULE_IDS[module], len(content), len(bomb))
    target.write_bytes(bytes(content) + bomb)
    assert outcome(target) in ("error", "damaged")
    write_log(target, names={1: b"a" * (100 << 20)})
    assert outcome(target) == "damaged"
    assert not open_log(target).names


@pytest.mark.parametrize("module", MODULE_IDS)
def test_garbage_in_any_module(target: Path, module: str) -> None:
    generator = random.Random(6)
    for version in (1, 2):
        for size in (1, 48, 104, 3000):
            outcome(
                write_log(target, modules={module: ModuleSpec(version=version, streams=[generator.randbytes(size)])})
            )


def job_log(target: Path, posix: list[dict[str, int]], dxt: list[DxtRecord], **cut: int) -> Path:
    """A log of one process. `cut`: bytes that are missing at the end of a module; its stream itself is whole."""
    streams = {
        "POSIX": encode_counters("POSIX", posix, 4),
        "STDIO": encode_counters("STDIO", [{"record_id": 1, "STDIO_OPENS": 1}, {"record_id": 2}], 2),
        "DXT_POSIX": encode_dxt(dxt),
        "MDHIM": bytes(64),
    }
    versions = {"POSIX": 4, "STDIO": 2, "DXT_POSIX": 1, "MDHIM": 1}
    modules = {
        name: ModuleSpec(version=versions[name], streams=[data[: len(data) - cut.get(name, 0)]])
        for name, data in streams.items()
    }
    return write_log(target, names={1: b"/a", 2: b"/b"}, modules=modules, job=JobSpec(nprocs=1))


@pytest.mark.parametrize(("module", "cut"), [("DXT_POSIX", 1), ("DXT_POSIX", 40), ("POSIX", 8), ("STDIO", 1)])
def test_a_capture_reports_what_it_lacks(target: Path, module: str, cut: int) -> None:
    made = merge([job_log(target, posix_rows(RECORDS), RECORDS, **{module: cut})], [], target.with_suffix(".capture"))
    assert made.operations >= len(RECORDS[0].reads)
    (warning,) = [text for text in made.info.warnings if "ends inside" in text]
    assert warning.startswith("job.darshan is damaged, and the capture lacks what follows the damage: ")
    assert f"{module} ends inside" in warning
    assert (made.info.coverage.bytes is None) == (module != "DXT_POSIX")
    assert any("does not read these modules" in text and "MDHIM (" in text for text in made.info.warnings)


@pytest.mark.parametrize(
    ("reads", "counted", "said"),
    [
        ([[(0, 1 << 50, 1.0, 2.0), (0, 10, 3.0, 2.0)]], [20], "damaged beyond use"),
        # Rubbish of one file is not hidden by the size of another.
        (
            [[(0, 1 << 30, 1.0, 2.0)], [(0, 5000, 1.0, 2.0), (0, 10, 3.0, 2.0)]],
            [1 << 30, 50],
            "trace holds 100 times what its counters saw of /b;",
        ),
    ],
)
def test_what_is_left_of_a_damaged_trace_must_agree_with_the_counters(
    target: Path, reads: list[list[tuple[float, ...]]], counted: list[int], said: str
) -> None:
    dxt = [DxtRecord(record_id=1 + n, reads=each) for n, each in enumerate(reads)]
    posix = [{"record_id": 1 + n, "POSIX_READS": 2, "POSIX_BYTES_READ": each} for n, each in enumerate(counted)]
    with pytest.raises(LogError, match=said):
        merge([job_log(target, posix, dxt)], [], target.with_suffix(".capture"))
    assert not target.with_suffix(".capture").exists()
