"""Each finding with a capture that has it and one that just has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.finding import SEVERITIES, Finding
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.files import classify
from dxt_replay.traces.schema import FORMATS, CaptureInfo, Coverage, Job
from tests.capture_builder import File, Op, Span, build_capture, read, write

MIB = 1 << 20
KIB = 1 << 10
MS = 1_000_000
S = 1_000_000_000


def codes(directory: Path, **columns: Any) -> dict[str, Finding]:
    found = findings(build_capture(directory, **columns))
    for finding in found:
        assert finding.severity in SEVERITIES
        assert all((finding.title, finding.evidence, finding.threshold, finding.remedy))
    assert [SEVERITIES.index(finding.severity) for finding in found] == sorted(
        SEVERITIES.index(finding.severity) for finding in found
    )
    return {finding.code: finding for finding in found}


def info(ranks: int = 1, run_s: float = 100.0, **columns: Any) -> CaptureInfo:
    return CaptureInfo(job=Job(nprocs=ranks, run_time_s=run_s), ranks=tuple(range(ranks)), **columns)


def steps(count: int, length: int, *, rank: int = 0, **kinds: tuple[int, int]) -> list[Span]:
    """Steps of `length`, each with spans of `kinds` from and to these times within it."""
    return [
        span
        for number in range(count)
        for span in (
            Span("step", start_ns=number * length, end_ns=(number + 1) * length, step=number, rank=rank),
            *(
                Span(kind, start_ns=number * length + begin, end_ns=number * length + end, step=number, rank=rank)
                for kind, (begin, end) in kinds.items()
            ),
        )
    ]


def reads(count: int, length: int, *, file: int = 0, rank: int = 0, stride: int | None = None) -> list[Op]:
    step = length if stride is None else stride
    return [
        read(file, offset=n * step, length=length, start_ns=n * MS, end_ns=n * MS + MS // 2, rank=rank)
        for n in range(count)
    ]


def coverage(**known: float | None) -> dict[str, Any]:
    return {"info": info(coverage=Coverage(**{"bytes": 1.0, "operations": 1.0, **known}))}


def of_chunks(requests: int) -> dict[str, Any]:
    counters = {"h5d_reads": requests, "h5d_bytes_read": 200 * 2048, "posix_reads": 200}
    return {"files": [File("/a.h5", format="hdf5", counters=counters)], "ops": reads(200, 2048)}


def at_random(ranks: int, random: int, regular: int) -> dict[str, Any]:
    places = [(7919 * n * n) % 100_003 + 1 for n in range(random // ranks)]
    places += [200_000 + 10 * n for n in range(regular // ranks)]
    every = [(rank, n, place) for rank in range(ranks) for n, place in enumerate(places)]
    return {"files": ["/a"], "ops": [read(0, offset=at, length=10, start_ns=n, rank=rank) for rank, n, at in every]}


def again(passes: int) -> dict[str, Any]:
    every = [(time, n) for time in range(passes) for n in range(3)]
    return {"files": ["/a"], "ops": [read(0, offset=n * MIB, length=MIB, start_ns=100 * at + n) for at, n in every]}


def by_two_ranks(overlapping: int) -> dict[str, Any]:
    every = [(rank, n, (n + rank * (4 - overlapping)) * MIB) for rank in range(2) for n in range(4)]
    return {"files": ["/a"], "ops": [read(0, offset=at, length=MIB, start_ns=n, rank=rank) for rank, n, at in every]}


def uneven(least: int) -> dict[str, Any]:
    amounts = (least * MIB, S * 8 // 10), (100 * MIB, S)
    ops = [read(rank, length=size, start_ns=0, end_ns=end, rank=rank) for rank, (size, end) in enumerate(amounts)]
    return {"files": ["/a", "/b"], "ops": ops}


def opening(seconds: int, run_s: float = 100.0, origin: str = "traced") -> dict[str, Any]:
    return {
        "files": ["/a"],
        "ops": [Op("open", 0, start_ns=0, end_ns=seconds * S, origin=origin)],
        "info": info(1, run_s),
    }


def saving(save_ms: int, *, inside: bool) -> dict[str, Any]:
    """Ten steps of 10 ms; the fifth saves for `save_ms` within it, or between it and the next."""
    spans, begin = [], 0
    for number in range(10):
        length = 10 + (save_ms if number == 5 and inside else 0)
        spans.append(Span("step", start_ns=begin * MS, end_ns=(begin + length) * MS, step=number))
        if number == 5:
            spans.append(Span("checkpoint", start_ns=(begin + 10) * MS, end_ns=(begin + 10 + save_ms) * MS))
            begin += 0 if inside else save_ms
        begin += length
    return {"spans": spans}


def small_writes(path: str) -> dict[str, Any]:
    ops = [write(0, length=64, offset=64 * n, start_ns=n * MS, end_ns=n * MS + MS // 2) for n in range(200)]
    return {"files": [path], "ops": ops}


def chunked(kind: str, length: int, stride: int) -> dict[str, Any]:
    return {"files": [File("/a", format=kind)], "ops": reads(200, length, stride=stride)}


def striped(stripe: int) -> dict[str, Any]:
    return {"files": [File("/a", stripe_size=stripe)], "ops": reads(200, 64 * KIB)}


JUST: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "partial-trace": (
        [coverage(bytes=0.98), coverage(operations=0.98)],
        [coverage(bytes=0.99), coverage(operations=0.99), coverage(bytes=None), coverage(operations=None)],
    ),
    "small-reads": ([striped(128 * KIB)], [striped(64 * KIB)]),
    "small-chunks": (
        [of_chunks(49), chunked("hdf5", 2048, 2048)],
        [
            *(of_chunks(50), of_chunks(1000), chunked("hdf5", 2048, 4096), chunked("npz", 2048, 2048)),
            chunked("hdf5", 64 * KIB, 64 * KIB),
        ],
    ),
    "random-shared": ([at_random(2, 110, 380)], [at_random(1, 220, 200), at_random(2, 110, 440), at_random(2, 50, 0)]),
    "re-reads": ([again(2)], [again(1)]),
    "shared-reads": ([by_two_ranks(4)], [by_two_ranks(1)]),
    "rank-imbalance": ([uneven(69)], [uneven(70)]),
    "metadata-time": (
        [opening(5), opening(5, origin="reconstructed"), opening(31, 1_000)], [opening(4), opening(30, 1_000)],
    ),
    "checkpoint-blocking": ([saving(15, inside=True), saving(15, inside=False)], [saving(9, inside=True)]),
    "small-writes": (
        [small_writes("/run/log.txt")],
        [small_writes("/run/dxt-anchor.host.17.bin"), small_writes("/run/plugins/profile/2026/vm.xplane.pb")],
    ),
}  # fmt: skip
"""Finding -> captures that have it, and captures that just have not."""


@pytest.mark.parametrize(
    ("code", "columns", "found"),
    [
        pytest.param(code, columns, found, id=f"{code}-{found}-{number}")
        for code, both in JUST.items()
        for found, some in zip((True, False), both, strict=True)
        for number, columns in enumerate(some)
    ],
)
def test_a_finding_begins_at_its_threshold(tmp_path: Path, code: str, columns: dict[str, Any], found: bool) -> None:
    assert (code in codes(tmp_path, **columns)) == found


def test_a_capture_that_is_marked_as_partial(tmp_path: Path) -> None:
    assert codes(tmp_path, info=info(partial=True))["partial-trace"].severity == "high"


@pytest.mark.parametrize(
    ("small", "large", "found"), [(100, 800, True), (99, 0, False), (100, 900, False), (100, 899, True)]
)
@pytest.mark.parametrize("op", ["read", "write"])
def test_small_requests(tmp_path: Path, small: int, large: int, found: bool, op: str) -> None:
    make = {"read": read, "write": write}[op]
    ops = [make(0, length=MIB - 1 if n < small else MIB, offset=n * MIB, start_ns=n) for n in range(small + large)]
    result = codes(tmp_path, files=["/a"], ops=ops)
    assert (f"small-{op}s" in result) == found
    assert f"small-{'write' if op == 'read' else 'read'}s" not in result
    if found:
        assert result[f"small-{op}s"].files == ("/a",)


@pytest.mark.parametrize(("longest", "run_s", "found"), [(10, 100, True), (10, 1000, False), (7, 100, False)])
def test_rank_imbalance_in_time(tmp_path: Path, longest: int, run_s: float, found: bool) -> None:
    ops = [read(rank, length=MIB, start_ns=0, end_ns=(longest if rank else 5) * S, rank=rank) for rank in range(2)]
    result = codes(tmp_path, files=["/a", "/b"], ops=ops, info=info(2, run_s))
    assert ("rank-imbalance" in result) == found
    if found:
        assert result["rank-imbalance"].at_stake_s == 2.5, "to the mean of the ranks"
        assert result["rank-imbalance"].severity == "info"


@pytest.mark.parametrize(("wait", "severity"), [(10, None), (11, "warning"), (25, "high")])
def test_input_bound(tmp_path: Path, wait: int, severity: str | None) -> None:
    spans = steps(10, 100 * MS, input_wait=(0, wait * MS), compute=(wait * MS, 100 * MS))
    found = codes(tmp_path, spans=spans)
    assert (found["input-bound"].severity if "input-bound" in found else None) == severity


@pytest.mark.parametrize(("io", "cause"), [(10, "for storage"), (9, "without recorded I/O")])
def test_input_bound_by_storage_or_by_something_else(tmp_path: Path, io: int, cause: str) -> None:
    spans = steps(10, 100 * MS, input_wait=(0, 20 * MS))
    ops = [read(0, length=1, start_ns=n * 100 * MS, end_ns=(n * 100 + io) * MS) for n in range(10)]
    assert cause in codes(tmp_path, files=["/a"], ops=ops, spans=spans)["input-bound"].title


@pytest.mark.parametrize(
    ("io_ms", "hidden_ms", "found"), [(10, 0, True), (1, 0, True), (0.9, 0, False), (10, 1, False), (10, 0.9, True)]
)
def test_no_overlap(tmp_path: Path, io_ms: float, hidden_ms: float, found: bool) -> None:
    spans = steps(10, 100 * MS, compute=(50 * MS, 100 * MS))
    begin = int((50 - io_ms + hidden_ms) * MS)
    ops = [
        read(0, length=1, start_ns=n * 100 * MS + begin, end_ns=n * 100 * MS + begin + int(io_ms * MS))
        for n in range(10)
    ]
    result = codes(tmp_path, files=["/a"], ops=ops, spans=spans)
    assert ("no-overlap" in result) == found
    assert not found or result["no-overlap"].severity == ("warning" if io_ms == 10 else "info")


@pytest.mark.parametrize(
    ("shift_ms", "io_ms", "found"), [(10, 10, True), (9, 10, False), (9.1, 10, True), (0.1, 0.1, False)]
)
def test_one_reader(tmp_path: Path, shift_ms: float, io_ms: float, found: bool) -> None:
    """Two reads per step, the second of which begins `shift_ms` after the first."""
    spans = steps(10, 100 * MS, compute=(50 * MS, 100 * MS))
    ops = [
        read(0, length=1, start_ns=begin, end_ns=begin + int(io_ms * MS), lane=lane)
        for n in range(10)
        for lane in range(2)
        for begin in [n * 100 * MS + int(lane * shift_ms * MS)]
    ]
    assert ("one-reader" in codes(tmp_path, files=["/a"], ops=ops, spans=spans)) == found


def test_what_a_checkpoint_writes_is_told_also_from_counters(tmp_path: Path) -> None:
    spans = steps(10, 10 * MS)
    spans[-1] = Span("step", start_ns=90 * MS, end_ns=130 * MS, step=9)
    spans.append(Span("checkpoint", start_ns=91 * MS, end_ns=129 * MS))
    ops = [
        write(0, length=3 * MIB, start_ns=92 * MS, origin="reconstructed", api="STDIO"),
        write(0, offset=3 * MIB, length=MIB, start_ns=93 * MS),
    ]
    found = codes(tmp_path, files=[File("/ckpt", format="checkpoint")], ops=ops, spans=spans)
    assert "writes 4.00 MiB in all" in found["checkpoint-blocking"].evidence


def test_a_healthy_capture_has_no_finding(tmp_path: Path) -> None:
    spans = steps(10, 100 * MS, compute=(0, 100 * MS))
    ops = [read(0, offset=n * MIB, length=MIB, start_ns=n * 10 * MS, end_ns=n * 10 * MS + 9 * MS) for n in range(90)]
    assert codes(tmp_path, files=["/a"], ops=ops, spans=spans, info=info(run_s=1)) == {}
    assert codes(tmp_path / "empty") == {}


def test_what_could_gain_less_than_a_hundredth_is_not_a_finding(tmp_path: Path) -> None:
    """A hundred small reads of 10 us: 1 ms in all."""
    ops = [read(0, offset=n * KIB, length=KIB, start_ns=n * MS, end_ns=n * MS + 10_000) for n in range(100)]
    for run_s, found in ((0.1, True), (0.11, False)):
        result = codes(tmp_path / str(run_s), files=["/a"], ops=ops, info=info(run_s=run_s))
        assert ("small-reads" in result) == found
        if found:
            stake = result["small-reads"]
            assert (stake.at_stake_s, stake.at_stake_pct, stake.at_stake_of) == (0.001, pytest.approx(1.0), "run")


def test_a_remedy_for_some_files_cannot_gain_more_than_their_io_time(tmp_path: Path) -> None:
    """200 small reads of 1 ms, and as many small writes to another file of 10 us: 2 ms in all."""
    ops = [read(0, offset=n * KIB, length=KIB, start_ns=n * 2 * MS, end_ns=(n * 2 + 1) * MS) for n in range(200)]
    ops += [
        write(1, offset=n * KIB, length=KIB, start_ns=(n * 2 + 1) * MS, end_ns=(n * 2 + 1) * MS + 10_000)
        for n in range(200)
    ]
    for run_s, found in ((0.4, False), (0.2, True)):
        result = codes(tmp_path / str(run_s), files=["/a", "/log"], ops=ops, info=info(run_s=run_s))
        assert result["small-reads"].at_stake_s == pytest.approx(0.2)
        assert ("small-writes" in result) == found
        if found:
            assert result["small-writes"].at_stake_s == pytest.approx(0.002)


def test_findings_are_in_the_order_of_what_is_at_stake(tmp_path: Path) -> None:
    spans = steps(10, 100 * MS, input_wait=(0, 15 * MS), compute=(15 * MS, 100 * MS))
    ops = [read(0, offset=KIB * n, length=KIB, start_ns=n * 10 * MS, end_ns=n * 10 * MS + MS) for n in range(100)]
    found = codes(tmp_path, files=["/a"], ops=ops, spans=spans)
    assert list(found)[:2] == ["input-bound", "small-reads"]
    assert found["input-bound"].at_stake_s == pytest.approx(0.15)
    stakes = [finding.at_stake_s for finding in found.values()]
    assert stakes == sorted(stakes, key=lambda stake: -(stake or 0))


def test_a_first_step_that_dominates_is_a_finding_of_its_own(tmp_path: Path) -> None:
    """Its wait of 800 ms is left out: the nine other steps wait 5 % of their time."""
    spans = [Span("step", start_ns=0, end_ns=S, step=0), Span("input_wait", start_ns=0, end_ns=800 * MS, step=0)]
    for number in range(1, 10):
        begin = S + (number - 1) * 100 * MS
        spans.append(Span("step", start_ns=begin, end_ns=begin + 100 * MS, step=number))
        spans.append(Span("input_wait", start_ns=begin, end_ns=begin + 5 * MS, step=number))
    found = codes(tmp_path, spans=spans)
    assert list(found) == ["warm-up"]
    assert (found["warm-up"].severity, found["warm-up"].at_stake_s) == ("info", pytest.approx(0.9))


@pytest.mark.parametrize(
    ("wait", "exe", "remedy"),
    [
        ("IteratorGetNextOp::DoCompute", "python a.py", "num_parallel_calls"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "python a.py", "DataLoader(..."),
        ("wait", "torchrun train.py", "DataLoader(..."),
        ("wait", "python a.py", "more threads or processes"),
    ],
)
def test_remedies_are_those_of_the_framework(tmp_path: Path, wait: str, exe: str, remedy: str) -> None:
    spans = [
        span
        for number in range(10)
        for span in (
            Span("step", start_ns=number * S, end_ns=(number + 1) * S, step=number),
            Span("input_wait", start_ns=number * S, end_ns=number * S + S // 2, step=number, name=wait),
        )
    ]
    described = CaptureInfo(job=Job(nprocs=1, run_time_s=10.0, exe=exe), ranks=(0,))
    assert remedy in codes(tmp_path, spans=spans, info=described)["input-bound"].remedy


def test_no_more_is_at_stake_than_storage_costs(tmp_path: Path) -> None:
    """Reads take 0.8 s of each second; by the causal model they cost the training 0.3 s in all, by another nothing."""
    ops = [
        read(0, length=4096, offset=4096 * n, start_ns=n * S // 40, end_ns=n * S // 40 + 20 * MS) for n in range(400)
    ]
    spans = steps(10, S, input_wait=(0, S))
    capture = build_capture(tmp_path, files=["/a"], ops=ops, spans=spans, info=info(run_s=10))
    before = {finding.code: finding for finding in findings(capture)}
    after = {finding.code: finding for finding in findings(capture, saved_s=(0.3, 0.3))}
    assert {"input-bound", "small-reads"} <= set(after)
    for code, finding in after.items():
        assert (before[code].at_stake_s or 0) > 3
        assert (finding.at_stake_s, finding.at_stake_pct) == (0.3, pytest.approx(3.0))
        assert finding.severity == "info"
        assert "Infinitely fast storage would save at most 300 ms of the training loop." in finding.evidence
    nothing = findings(capture, saved_s=(0.0, 0.0))
    assert [(finding.code, finding.at_stake_s) for finding in nothing] == [("input-bound", 0.0)]


@pytest.mark.parametrize(
    ("path", "sharded"),
    [
        ("/data/train-0001.tar", True),
        ("/data/train-0001.TAR.GZ", True),
        ("/data/0.h5", True),
        ("/data/0.nc", True),
        ("/data/images/1.jpg", False),
    ],
)
def test_no_remedy_is_what_the_program_does_by_now(tmp_path: Path, path: str, sharded: bool) -> None:
    """A program that reads shards is not told to read shards, and one with HDF5 not to use HDF5."""
    file = File(path, format=FORMATS[classify(path)])
    opened = [Op("open", 0, start_ns=n * S, end_ns=n * S + S // 2) for n in range(40)]
    described = CaptureInfo(job=Job(nprocs=1, run_time_s=100.0, exe="torchrun train.py"), ranks=(0,))
    found = codes(tmp_path, files=[file], ops=[*opened, *reads(3000, 4 * KIB)], info=described)
    for code in ("metadata-time", "small-reads"):
        remedy = found[code].remedy
        assert ("WebDataset" in remedy or "HDF5" in remedy) != sharded, code


@pytest.mark.parametrize(("fs_type", "stripe", "limit"), [("lustre", 4 * MIB, "a stripe"), ("ext4", None, "1 MiB")])
def test_stripes_are_of_lustre_alone(tmp_path: Path, fs_type: str, stripe: int | None, limit: str) -> None:
    found = codes(tmp_path, files=[File("/a", fs_type=fs_type, stripe_size=stripe)], ops=reads(200, KIB))
    assert limit in found["small-reads"].title
    assert ("stripe" in found["small-reads"].threshold + found["small-reads"].evidence) == (fs_type == "lustre")


def test_a_log_without_a_trace_is_said_to_have_none(tmp_path: Path) -> None:
    counted = File("/a", counters={"posix_reads": 7, "posix_bytes_read": 7000})
    found = codes(tmp_path, files=[counted], info=info(coverage=Coverage(bytes=0.0, operations=0.0)))
    assert list(found) == ["no-trace"]
    assert "DXT_ENABLE_IO_TRACE=1" in found["no-trace"].remedy
