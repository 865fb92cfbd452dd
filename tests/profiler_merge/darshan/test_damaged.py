"""Damaged logs: whatever is wrong with a file, reading it ends at the damage or raises one of our errors.

Nothing else may escape, a log that is cut short must not pass for a whole one, and no lie in a header may cost memory.
"""

import random
import resource
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.darshan.log import CONTAINERS, open_log
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.errors import DxtReplayError, LogError
from tests.darshan_writer import (
    MODULE_IDS,
    DxtRecord,
    JobSpec,
    ModuleSpec,
    encode_counters,
    encode_dxt,
    posix_rows,
    write_log,
)
from tests.fuzz.seeds import SOUND
from tests.fuzz.targets import TARGETS, digest
from tests.places import SMALL

BOUND_BYTES = 400 << 20
"""More address space than reading any of these logs may take."""

RECORDS = [
    DxtRecord(record_id=1, rank=0, reads=[(n * 10, 10, n + 0.25, n + 0.5, 7) for n in range(6)]),
    DxtRecord(record_id=2, rank=0, writes=[(0, 5, 1.0, 2.0, 7)], reads=[(0, 0, 2.5, 2.5, 8)]),
]


LOGS = {
    "every module": SOUND / "darshan/0/job.darshan",  # uncompressed: a flipped bit gets past the checksums
    "old container": SOUND / "darshan/1/job.darshan",
    "captured": SMALL / "captures/cosmoflow_threads/job.darshan",
}


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
        found = TARGETS["darshan"].read(path.parent)
        return "damaged" if any(text.startswith(f"{path} is damaged") for text in found[-1]) else digest(found)
    except DxtReplayError as error:
        return "error" if str(path) in str(error) else f"does not say which file: {error}"


@pytest.mark.parametrize("name", LOGS)
def test_a_cut_log_does_not_pass_for_a_whole_one(target: Path, name: str) -> None:
    content = LOGS[name].read_bytes()
    for length in range(0, len(content), 97):
        target.write_bytes(content[:length])
        assert outcome(target) in ("error", "damaged"), f"cut to {length} bytes it passes for whole"


@pytest.mark.parametrize("name", LOGS)
def test_a_flipped_bit_and_foreign_bytes_are_noticed_behind_a_checksum(target: Path, name: str) -> None:
    content, generator = LOGS[name].read_bytes(), random.Random(4)
    target.write_bytes(content)
    sound, head = outcome(target), CONTAINERS[open_log(target).version].header_bytes
    for position in sorted(generator.sample(range(len(content)), 60)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << generator.randrange(8)
        target.write_bytes(damaged)
        found = outcome(target)
        assert found in (sound, "error", "damaged") or name == "every module" or position < head
    middle = (head + len(content)) // 2
    target.write_bytes(content[:middle] + generator.randbytes(64) + content[middle + 64 :])
    assert outcome(target) in ("error", "damaged") if name != "every module" else outcome(target) != sound


@pytest.mark.parametrize("module", ["POSIX", "DXT_POSIX", "LUSTRE"])
def test_ten_kilobytes_that_would_be_ten_megabytes_of_zeros(target: Path, module: str) -> None:
    bomb = zlib.compress(bytes(10 << 20), 9)
    write_log(target, modules={module: ModuleSpec(version=1, streams=[b""])})
    content = bytearray(target.read_bytes())
    struct.pack_into("<QQ", content, 48 + 16 * MODULE_IDS[module], len(content), len(bomb))
    target.write_bytes(bytes(content) + bomb)
    assert outcome(target) in ("error", "damaged")


def test_names_that_would_take_all_memory(target: Path) -> None:
    write_log(target, names={1: b"a" * (100 << 20)})
    assert outcome(target) == "damaged"
    assert not open_log(target).names


def job_log(target: Path, posix: list[dict[str, int]], dxt: list[DxtRecord], **cut: int) -> Path:
    """A log of one process. `cut`: bytes that are missing at the end of a module; its stream itself is whole."""
    stdio = encode_counters("STDIO", [{"record_id": 1, "STDIO_OPENS": 1}, {"record_id": 2}], 2)
    streams = {
        "POSIX": (4, encode_counters("POSIX", posix, 4)), "STDIO": (2, stdio), "DXT_POSIX": (1, encode_dxt(dxt)),
        "MDHIM": (1, bytes(64)),
    }  # fmt: skip
    modules = {
        name: ModuleSpec(version=version, streams=[data[: len(data) - cut.get(name, 0)]])
        for name, (version, data) in streams.items()
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
