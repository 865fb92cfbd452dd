"""Findings: captures that have each, and captures that just have not; what is at stake, and the words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.analyse import WorkerStarts, worker_starts
from dxt_replay.profiler_merge.analysis.finding import SEVERITIES, Finding
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.files import classify
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.records import BenchmarkRun, benchmark_run
from dxt_replay.traces.schema import FORMATS, CaptureInfo, Coverage, Job, RankClock
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Op, Span, build_capture, read, write

KIB, MIB = 1 << 10, 1 << 20
MS, S = 1_000_000, 1_000_000_000
Columns = dict[str, Any]


def found_in(capture: Capture) -> dict[str, Finding]:
    found = findings(capture)
    assert all(all((each.title, each.evidence, each.threshold, each.remedy)) for each in found)
    order = [SEVERITIES.index(each.severity) for each in found]
    assert order == sorted(order)
    return {finding.code: finding for finding in found}


def codes(directory: Path, **columns: Any) -> dict[str, Finding]:
    return found_in(build_capture(directory, **columns))


def info(ranks: int = 1, run_s: float = 100.0, exe: str = "", **columns: Any) -> CaptureInfo:
    return CaptureInfo(job=Job(nprocs=ranks, run_time_s=run_s, exe=exe), ranks=tuple(range(ranks)), **columns)


def steps(count: int, length: int, name: str = "", **kinds: tuple[int, int]) -> list[Span]:
    """Steps of `length`, each with spans of `kinds` from and to these times within it."""
    found = []
    for step in range(count):
        begin = step * length
        found.append(Span("step", begin, begin + length, step=step))
        found += [Span(kind, begin + low, begin + high, name, step=step) for kind, (low, high) in kinds.items()]
    return found


def waiting(wait_pct: int, io_ms: int = 0, **columns: Any) -> Columns:
    """Steps of 100 ms that wait for so much of it, with reads in the wait."""
    ops = [read(0, length=1, start_ns=n * 100 * MS, end_ns=(n * 100 + io_ms) * MS) for n in range(10 if io_ms else 0)]
    spans = steps(10, 100 * MS, input_wait=(0, wait_pct * MS), compute=(wait_pct * MS, 100 * MS))
    return {"files": ["/a"], "ops": ops, "spans": spans, **columns}


def hiding(io_ms: float, hidden_ms: float) -> Columns:
    """A read in each step that ends so long after the compute begins."""
    begin, length = int((50 - io_ms + hidden_ms) * MS), int(io_ms * MS)
    ops = [read(0, length=1, start_ns=n * 100 * MS + begin, end_ns=n * 100 * MS + begin + length) for n in range(10)]
    return {"files": ["/a"], "ops": ops, "spans": steps(10, 100 * MS, compute=(50 * MS, 100 * MS))}


def two_reads(shift_ms: float, io_ms: float) -> Columns:
    """Two reads in each step, the second of which begins `shift_ms` after the first."""
    begins = [(n * 100 * MS + int(lane * shift_ms * MS), lane) for n in range(10) for lane in range(2)]
    ops = [read(0, length=1, start_ns=at, end_ns=at + int(io_ms * MS), lane=lane) for at, lane in begins]
    return {"files": ["/a"], "ops": ops, "spans": steps(10, 100 * MS, compute=(50 * MS, 100 * MS))}


def requests(op: str, small: int, large: int) -> Columns:
    count = small + large
    ops = [Op(op, 0, n * MIB, MIB - 1 if n < small else MIB, start_ns=n) for n in range(count)]
    return {"files": ["/a"], "ops": ops}


def reads(count: int, length: int, stride: int | None = None, us: int = 500) -> list[Op]:
    step = length if stride is None else stride
    times = ((n * MS, n * MS + us * 1000) for n in range(count))
    return [read(0, offset=n * step, length=length, start_ns=a, end_ns=b) for n, (a, b) in enumerate(times)]


def chunked(kind: str, length: int, stride: int, requests: int | None = None) -> Columns:
    counters = {"h5d_reads": requests, "h5d_bytes_read": 200 * length, "posix_reads": 200} if requests else {}
    return {"files": [File("/a.h5", format=kind, counters=counters)], "ops": reads(200, length, stride)}


def at_random(ranks: int, random: int, regular: int) -> Columns:
    places = [(7919 * n * n) % 100_003 + 1 for n in range(random // ranks)]
    places += [200_000 + 10 * n for n in range(regular // ranks)]
    ops = [read(0, offset=at, length=10, start_ns=n, rank=rank) for rank in range(ranks) for n, at in enumerate(places)]
    return {"files": ["/a"], "ops": ops}


def again(passes: int) -> Columns:
    ops = [read(0, offset=n * MIB, length=MIB, start_ns=100 * time + n) for time in range(passes) for n in range(3)]
    return {"files": ["/a"], "ops": ops}


def by_two_ranks(overlapping: int) -> Columns:
    every = [(rank, n, (n + rank * (4 - overlapping)) * MIB) for rank in range(2) for n in range(4)]
    return {"files": ["/a"], "ops": [read(0, offset=at, length=MIB, start_ns=n, rank=rank) for rank, n, at in every]}


def uneven(mib: tuple[int, int], ms: tuple[int, int], run_s: float = 1) -> Columns:
    ops = [read(rank, length=mib[rank] * MIB, end_ns=ms[rank] * MS, rank=rank) for rank in range(2)]
    return {"files": ["/a", "/b"], "ops": ops, "info": info(2, run_s)}


def opening(seconds: int, run_s: float = 100.0, origin: str = "traced") -> Columns:
    return {"files": ["/a"], "ops": [Op("open", 0, end_ns=seconds * S, origin=origin)], "info": info(1, run_s)}


def saving(save_ms: int, *, inside: bool) -> Columns:
    """Ten steps of 10 ms; the fifth saves for `save_ms` within it, or between it and the next."""
    spans, begin = [], 0
    for number in range(10):
        length = 10 + (save_ms if number == 5 and inside else 0)
        spans.append(Span("step", begin * MS, (begin + length) * MS, step=number))
        if number == 5:
            spans.append(Span("checkpoint", (begin + 10) * MS, (begin + 10 + save_ms) * MS))
            begin += 0 if inside else save_ms
        begin += length
    written = {"start_ns": 61 * MS, "end_ns": 62 * MS}
    ops = [write(0, length=3 * MIB, origin="reconstructed", api="STDIO", **written), write(0, length=MIB, **written)]
    return {"files": [File("/ckpt", format="checkpoint")], "ops": ops, "spans": spans}


def small_writes(path: str) -> Columns:
    ops = [write(0, length=64, offset=64 * n, start_ns=n * MS, end_ns=n * MS + MS // 2) for n in range(200)]
    return {"files": [path], "ops": ops}


def striped(stripe: int | None, length: int = 64 * KIB, fs_type: str = "lustre", **columns: Any) -> Columns:
    return {"files": [File("/a", stripe_size=stripe, fs_type=fs_type)], "ops": reads(200, length), **columns}


def covered(**known: float | None) -> Columns:
    return {"info": info(coverage=Coverage(**{"bytes": 1.0, "operations": 1.0, **known}))}


def shards(path: str) -> Columns:
    opened = [Op("open", 0, start_ns=n * S, end_ns=n * S + S // 2) for n in range(40)]
    file = File(path, format=FORMATS[classify(path)])
    return {"files": [file], "ops": [*opened, *reads(3000, 4 * KIB)], "info": info(exe="torchrun train.py")}


def framework(wait: str, exe: str) -> Columns:
    return {"spans": steps(10, S, wait, input_wait=(0, S // 2)), "info": info(run_s=10, exe=exe)}


def small_beside(run_s: float, us: int = 10) -> Columns:
    """200 small reads of 1 ms, and as many small writes to another file of 10 us: 2 ms in all."""
    ops = [read(0, offset=n * KIB, length=KIB, start_ns=2 * n * MS, end_ns=(2 * n + 1) * MS) for n in range(200)]
    begins = [(2 * n + 1) * MS for n in range(200)]
    ops += [write(1, offset=KIB * n, length=KIB, start_ns=at, end_ns=at + us * 1000) for n, at in enumerate(begins)]
    return {"files": ["/a", "/log"], "ops": ops, "info": info(run_s=run_s)}


CASES: list[tuple[str, Columns, Sequence[str]]] = [
    *(("partial-trace", covered(**{name: 0.98}), ["high", "98.0 %"]) for name in ("bytes", "operations")),
    *(("partial-trace", covered(**{name: value}), ()) for name in ("bytes", "operations") for value in (0.99, None)),
    ("partial-trace", {"info": info(partial=True)}, ["high"]),
    *(
        (f"small-{kind}s", requests(op, small, large), ["/a"] if found and kind == op else ())
        for small, large, found in ((100, 800, True), (99, 0, False), (100, 900, False), (100, 899, True))
        for op in ("read", "write")
        for kind in ("read", "write")
    ),
    # 1 ms in all: just a hundredth of the run, or not
    *(
        ("small-reads", {"files": ["/a"], "ops": reads(100, KIB, us=10), "info": info(run_s=run_s)}, words)
        for run_s, words in ((0.1, ["0.001 s, 1 % of the run"]), (0.11, ()))
    ),
    # a remedy for some files cannot gain more than their I/O time
    ("small-writes", small_beside(0.4), ()),
    ("small-writes", small_beside(0.2), ["0.002 s"]),
    ("small-reads", small_beside(0.2), ["0.2 s"]),
    ("small-reads", striped(64 * KIB), ()),
    ("small-reads", striped(128 * KIB), ["smaller than a stripe of their file"]),
    ("small-reads", striped(None, KIB, "ext4"), ["smaller than 1 MiB", "not stripe"]),
    ("small-writes", small_writes("/run/log.txt"), ["write"]),
    ("small-writes", small_writes("/run/dxt-anchor.host.17.bin"), ()),
    ("small-writes", small_writes("/run/plugins/profile/2026/vm.xplane.pb"), ()),
    ("small-chunks", chunked("hdf5", 2048, 2048, 49), ["h5repack", "reads_per_request 4.082"]),
    ("small-chunks", chunked("hdf5", 2048, 2048), ["h5repack"]),
    *(("small-chunks", chunked("hdf5", 2048, 2048, count), ()) for count in (50, 1000)),
    ("small-chunks", chunked("hdf5", 2048, 4096), ()),
    ("small-chunks", chunked("npz", 2048, 2048), ()),
    ("small-chunks", chunked("hdf5", 64 * KIB, 64 * KIB), ()),
    ("random-shared", at_random(2, 110, 380), ["1 files"]),
    *(("random-shared", at_random(*given), ()) for given in ((1, 220, 200), (2, 110, 440), (2, 50, 0))),
    ("re-reads", again(2), ["3.00 MiB of 6.00 MiB (50.0 %)"]),
    ("re-reads", again(1), ()),
    ("shared-reads", by_two_ranks(4), ["8.00 MiB, of which 4.00 MiB", "2.0 times"]),
    ("shared-reads", by_two_ranks(1), ()),
    ("rank-imbalance", uneven((69, 100), (800, 1000)), ["100 MiB"]),
    ("rank-imbalance", uneven((70, 100), (800, 1000)), ()),
    ("rank-imbalance", uneven((1, 1), (5_000, 10_000), 100), ["info", "2.5 s"]),  # to the mean of the ranks
    ("rank-imbalance", uneven((1, 1), (5_000, 10_000), 1000), ()),
    ("rank-imbalance", uneven((1, 1), (5_000, 7_000), 100), ()),
    ("metadata-time", opening(5), ["5.0 % of the run"]),
    ("metadata-time", opening(5, origin="reconstructed"), ["5.0 % of the run"]),
    ("metadata-time", opening(31, 1_000), ["3.1 % of the run"]),
    *(("metadata-time", opening(seconds, run_s), ()) for seconds, run_s in ((4, 100.0), (30, 1_000))),
    ("checkpoint-blocking", saving(15, inside=True), ["25.0 ms", "writes 4.00 MiB in all"]),
    ("checkpoint-blocking", saving(15, inside=False), ["25.0 ms"]),
    ("checkpoint-blocking", saving(9, inside=True), ()),
    ("input-bound", waiting(10), ()),
    ("input-bound", waiting(11), ["warning"]),
    ("input-bound", waiting(25), ["high"]),
    ("input-bound", waiting(20, 10), ["mostly for storage"]),
    ("input-bound", waiting(20, 9), ["mostly without recorded I/O"]),
    ("no-overlap", hiding(10, 0), ["warning"]),
    ("no-overlap", hiding(10, 0.9), ["warning"]),
    ("no-overlap", hiding(1, 0), ["info"]),
    *(("no-overlap", hiding(*given), ()) for given in ((0.9, 0), (10, 1))),
    *(("one-reader", two_reads(*given), ["operations are in flight"]) for given in ((10, 10), (9.1, 10))),
    *(("one-reader", two_reads(*given), ()) for given in ((9, 10), (0.1, 0.1))),
    ("input-bound", framework("IteratorGetNextOp::DoCompute", "python a.py"), ["num_parallel_calls"]),
    ("input-bound", framework("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", ""), ["DataLoader(..."]),
    ("input-bound", framework("wait", "torchrun train.py"), ["DataLoader(..."]),
    ("input-bound", framework("wait", "python a.py"), ["more threads or processes"]),
    # a program that reads shards is not told to read shards, and one with HDF5 not to use HDF5
    *(
        (code, shards(f"/data/{path}"), ["not WebDataset", "not HDF5"])
        for path in ("train-0001.tar", "train-0001.TAR.GZ", "0.h5", "0.nc")
        for code in ("metadata-time", "small-reads")
    ),
    ("metadata-time", shards("/data/1.jpg"), ["HDF5"]),
    ("small-reads", shards("/data/1.jpg"), ["WebDataset"]),
    ("no-trace", {"files": [File("/a", counters={"posix_reads": 7, "posix_bytes_read": 7000})],
                  **covered(bytes=0.0, operations=0.0)}, ["DXT_ENABLE_IO_TRACE=1", "high"]),
]  # fmt: skip
"""Code, capture, and words of the finding, of which some must "not " be there; none where it just is no finding."""


@pytest.mark.parametrize(
    ("code", "columns", "words"), [pytest.param(*case, id=f"{n}-{case[0]}") for n, case in enumerate(CASES)]
)
def test_a_finding_begins_at_its_threshold(tmp_path: Path, code: str, columns: Columns, words: Sequence[str]) -> None:
    found = codes(tmp_path, **columns).get(code)
    assert (found is not None) == bool(words)
    if found is not None:
        said = (found.severity, found.title, found.evidence, found.threshold, found.remedy, *found.files)
        said += tuple(f"{name} {value:.4g}" for name, value in found.values.items())
        text = "; ".join([*said, f"{found.at_stake_s:.6g} s, {found.at_stake_pct:.6g} % of the {found.at_stake_of}"
                          if found.at_stake_s is not None else ""])  # fmt: skip
        for word in words:
            assert (word.removeprefix("not ") in text) != word.startswith("not "), text


@pytest.mark.parametrize("healthy", [True, False])
def test_a_healthy_or_empty_capture_has_no_finding(tmp_path: Path, healthy: bool) -> None:
    ops = [read(0, offset=n * MIB, length=MIB, start_ns=n * 10 * MS, end_ns=n * 10 * MS + 9 * MS) for n in range(90)]
    some = {"files": ["/a"], "ops": ops, "spans": steps(10, 100 * MS, compute=(0, 100 * MS)), "info": info(run_s=1)}
    assert codes(tmp_path, **(some if healthy else {})) == {}


def test_a_first_step_that_dominates_is_a_finding_of_its_own(tmp_path: Path) -> None:
    """Its wait of 800 ms is left out: the nine other steps wait 5 % of their time."""
    spans = [Span("step", 0, S, step=0), Span("input_wait", 0, 800 * MS, step=0)]
    for number, begin in enumerate(range(S, S + 900 * MS, 100 * MS), 1):
        spans.append(Span("step", begin, begin + 100 * MS, step=number))
        spans.append(Span("input_wait", begin, begin + 5 * MS, step=number))
    found = codes(tmp_path, spans=spans)
    assert list(found) == ["warm-up"]
    assert (found["warm-up"].severity, found["warm-up"].at_stake_s) == ("info", pytest.approx(0.9))
    assert found["warm-up"].at_stake_pct == pytest.approx(50)


def test_no_more_is_at_stake_than_storage_costs(tmp_path: Path) -> None:
    """Reads take 0.8 s of each second; by the causal model they cost the training 0.3 s in all, by another nothing."""
    times = [n * S // 40 for n in range(400)]
    ops = [read(0, length=4096, offset=4096 * n, start_ns=at, end_ns=at + 20 * MS) for n, at in enumerate(times)]
    spans = steps(10, S, input_wait=(0, S))
    capture = build_capture(tmp_path, files=["/a"], ops=ops, spans=spans, info=info(run_s=10))
    before = found_in(capture)
    after = {finding.code: finding for finding in findings(capture, saved_s=(0.3, 0.3))}
    assert {"input-bound", "small-reads"} <= set(after)
    for code, finding in after.items():
        assert (before[code].at_stake_s or 0) > 3
        assert (finding.at_stake_s, finding.at_stake_pct) == (0.3, pytest.approx(3.0))
        assert finding.severity == "info"
        assert "Infinitely fast storage would save at most 300 ms of the training loop." in finding.evidence
    nothing = findings(capture, saved_s=(0.0, 0.0))
    assert [(finding.code, finding.at_stake_s) for finding in nothing] == [("input-bound", 0.0)]
    opens = build_capture(tmp_path / "opens", **waiting(20, 1))  # reads take 1 ms of 20; the model knows of the opens
    titles = [findings(opens, saved_s=(least, 0.2))[0].title.rpartition(", ")[2] for least in (0.05, 0.15)]
    assert titles == ["mostly without recorded I/O", "mostly for storage"]


# ---- workers of a DataLoader


def training(directory: Path, ops: Sequence[Op], workers: int, spans: Sequence[Span]) -> Capture:
    """Ten steps of a second. The processes are a rank and its workers."""
    one = {"rank": 0, "method": "wall", "offset_ns": 0, "residual_ns": 1, "interval_ns": (0, 1)}
    clock = tuple(RankClock(**one, worker=worker) for worker in range(workers + 1))
    described = info(run_s=10, exe="torchrun train.py", clock=clock)
    return build_capture(directory, files=["/d/1.png"], ops=ops, spans=spans, info=described)


@pytest.mark.parametrize(
    ("lives", "said", "again"),
    [
        ([], None, None),
        ([(0, 9)], "1 worker of", None),
        ([(0, 4), (0, 4), (5, 9), (5, 9)], "2 workers of", "started again 1 time:"),
        ([(0, 2), (3, 5), (6, 9)], "1 worker of", "started again 2 times:"),
        ([(0, 9), (0, 9), (2, 3), (5, 6)], "3 workers of", None),  # a loader for validation beside one that stays
        ([(0, 9), (0, 9), (11, 12)], "2 workers of", None),  # after the last step
    ],
)
def test_the_remedy_for_a_dataloader_follows_the_recorded_workers(
    tmp_path: Path, lives: list[tuple[int, int]], said: str | None, again: str | None
) -> None:
    """`lives`: the steps of the first and the last read of each worker."""
    times = [(step * S, lane) for lane, life in enumerate([(0, 9), *lives]) for step in life]
    ops = [read(0, start_ns=at, end_ns=at + MS, lane=lane) for at, lane in times]
    remedy = found_in(training(tmp_path, ops, len(lives), steps(10, S, input_wait=(0, S // 2))))["input-bound"].remedy
    assert "num_workers=N" in remedy
    assert ("persistent_workers" in remedy) == (again is not None)
    for text in (said, again):
        assert (text or "") in remedy
    if said is not None:  # half of the loop waits: twice as many are needed
        assert f"{2 * int(said[0])} would keep up" in remedy


def test_workers_of_an_evaluation_are_no_new_start(tmp_path: Path) -> None:
    ops = [read(0, start_ns=at * S, end_ns=at * S + MS, lane=lane) for lane, at in ((0, 0), (1, 1), (2, 5), (3, 8))]
    spans = [*steps(10, S), Span("other", 5 * S, 6 * S, "evaluation")]
    assert worker_starts(training(tmp_path, ops, 3, spans)) == WorkerStarts(at_once=1, starts=2)


# ---- figures of a benchmark, and the rules of MLPerf Storage

RUN = BenchmarkRun(
    workload="unet3d_h100", overrides=(), batch_size=7, record_bytes=140e6, files=14_000, samples_per_file=1,
    exclude_start_steps=1, exclude_end_steps=0, blocks=((1, 1, 4), (1, 5, 6), (2, 7, 10)),
)  # fmt: skip
MLPERF = ("mlperf-storage", "benchmark-figures")


def judged(folder: Path, *, wait_s: float = 0.1, made_by: Columns | None = None, **changes: Any) -> Finding:
    """Two ranks, ten steps: a wait, 1 s of compute, and 0.1 s (rank 1: 0.2 s) at a barrier; step 4 ends in a
    checkpoint of 3 s. The first step of each block waits 2 s."""
    spans, ops = [], []
    for rank in range(2):
        now = 0
        for step in range(1, 11):
            begin, wait = now, round((2 if step in (1, 5, 7) else wait_s) * S)
            parts = [("input_wait", wait), ("compute", S), ("collective", (1 + rank) * S // 10)]
            for kind, lasts in [*parts, *([("checkpoint", 3 * S)] if step == 4 else [])]:
                spans.append(Span(kind, now, now + lasts, rank=rank, step=step))
                now += lasts
            spans.append(Span("step", begin, now, rank=rank, step=step))
            ops.append(read(0, start_ns=begin, end_ns=begin + wait, length=8, rank=rank, step=step))
    job = Job(nprocs=2, run_time_s=now / S, metadata=dataclasses.replace(RUN, **changes).as_metadata())
    described = CaptureInfo(job=job, ranks=(0, 1), made_by=made_by or {})
    found = codes(folder, ops=ops, files=["/a"], spans=spans, info=described)
    (only,) = [finding for code, finding in found.items() if code in MLPERF]
    return only


def test_the_utilisation_is_that_of_dlios_formula(tmp_path: Path) -> None:
    """A block of n steps lasts 2 s + 1 s + barrier, and (n - 1) times 0.1 s + 1 s + barrier; its first step's wait and
    compute are left out, its barrier is not."""
    values = judged(tmp_path).values
    used = [
        ((3 / (3 * 1.1 + 4 * barrier)) * 3 + (1 / (1.1 + 2 * barrier)) * 1) / 4 / 2 + (3 / (3 * 1.1 + 4 * barrier)) / 2
        for barrier in (0.1, 0.2)
    ]
    dlio = [(2 / (5.3 + 1 + 4 * barrier) * 3 / 4 + 2 / (5.3 + 1 + 4 * barrier)) / 2 for barrier in (0.1, 0.2)]
    assert values == {
        "utilisation_pct": pytest.approx(100 * sum(used) / 2), "counted_steps": 7, "least_utilisation_pct": 90.0,
        "samples_per_s": pytest.approx(7 * sum(used)), "dlio_samples_per_s": pytest.approx(7 * sum(dlio)),
    }  # fmt: skip


WARM = {"command": "run", "pace": "steps", "result": {"cache": {"policy": "as found", "resident_before_pct": 12.5}}}


@pytest.mark.parametrize(
    ("given", "severity", "words"),
    [
        ({"workload": "cosmoflow_a100", "wait_s": 0.001, "overrides": ("dataset.num_files_train=14000",)}, "info",
         ["meets the checked rules", "at most 365 GiB of memory"]),
        ({"workload": "mine.yaml"}, "info", ["Benchmark mine.yaml", "not MLPerf Storage:"]),
        ({"wait_s": 0.5, "files": 6_999}, "warning", ["500 steps of all ranks need 7,000 files."]),
        ({"wait_s": 0.5, "overrides": ("++workload.train.epochs=1", "reader.odirect=true")}, "warning",
         ["may not change train.epochs."]),
        ({"workload": "resnet50_h100", "overrides": ("reader.odirect=true",)}, "warning",
         ["may not change reader.odirect."]),
        ({"wait_s": 0.5}, "warning", ["Utilisation is below 90 %."]),
        ({"made_by": WARM}, "warning", ["12.5 % of the data were in the page cache before the run.", "replayed"]),
    ],
)  # fmt: skip
def test_a_benchmark_has_figures_and_the_rules_that_it_misses(
    tmp_path: Path, given: Columns, severity: str, words: Sequence[str]
) -> None:
    found = judged(tmp_path, **given)
    assert (found.code, found.severity) == (MLPERF[given.get("workload") == "mine.yaml"], severity)
    for word in words:
        assert (word.removeprefix("not ") in found.title + found.evidence) != word.startswith("not ")


def test_what_lies_in_the_metadata_comes_back_or_is_damaged() -> None:
    def benchmark(metadata: dict[str, str]) -> BenchmarkRun | None:
        return benchmark_run(CaptureInfo(job=Job(nprocs=1, run_time_s=1, metadata=metadata), ranks=(0,)))

    assert benchmark(RUN.as_metadata()) == RUN
    assert benchmark({"lib_ver": "3.4"}) is None
    for text in ("", "[]", "{}", RUN.as_metadata()["benchmark"].replace("7,", "-7,"), "[" * 100_000):
        with pytest.raises(CaptureError, match="damaged"):
            benchmark({"benchmark": text})
