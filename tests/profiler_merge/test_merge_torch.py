"""PyTorch jobs to captures: logs of processes and Kineto profiles, small written ones and the real ones; several
profiles of one process, which are one training; use of the GPU; and DFTracer's annotations beside another trace."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dxt_replay
from dxt_replay.profiler_merge.given_files import find_profiles, find_recordings
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.measures.span_times import computed_in_loops, gpu_busy_in_profile
from dxt_replay.traces.store.reader import open_capture
from tests import kineto_writer as kineto
from tests import xplane_writer as xplane
from tests.capture_builder import Span, build_capture
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.kineto_writer import START_NS
from tests.places import recorded

SECOND = 10**9
START_S = START_NS // SECOND
PIDS = (4711, 4712)
NAMES = {
    1: b"/data/train.bin", 8: b"/tmp/tmpabc.json", 9: b"/tmp/tmpabc.json.tmp", 10: b"/run/p/cycle.pt.trace.json.gz",
}  # fmt: skip


def log(folder, pid, *, anchors=True):
    """A process that reads, sets anchors at 1, 1.1 and 1.2 s, and exports its profile."""
    names = dict(NAMES)
    records = [DxtRecord(record_id=1, rank=0, reads=[(4096 * i, 4096, 2 + i, 2.001 + i) for i in range(4)])]
    records += [DxtRecord(record_id=own, rank=0, writes=[(0, 1 << 20, 8, 8.1)]) for own in (8, 9, 10)]
    if anchors:
        names[7] = b"/run/dxt-anchor.node.%d.bin" % pid
        marks = [(64 * i, 64, 1 + i / 10, 1 + i / 10 + 5e-6) for i in range(3)]
        records.append(DxtRecord(record_id=7, rank=0, writes=marks))
    job = JobSpec(jobid=55, nprocs=1, start_s=START_S, start_ns=0, end_s=START_S + 10, end_ns=0)
    return write_dxt_log(folder / f"u_python_id55-{pid}_11-22-100-1_1.darshan", records, names=names, job=job)


def profile(path, pid, *, anchors=True, rank=0, first=0, count=6, **options):
    """Steps of a second each from 2 s on; `kineto`'s times count from START_NS."""
    zero = START_S * SECOND - START_NS + 3_000_000  # the log's clock is 3 ms early
    own, events = {"pid": pid, "tid": pid}, []
    for n in range(first, first + count):
        begin = zero + (2 + n) * SECOND
        events.append(kineto.mark(n, begin, begin + SECOND, **own))
        events.append(kineto.event("aten::add", begin + SECOND // 2, begin + 9 * SECOND // 10, **own))
    if anchors:
        events += [kineto.anchor(i, zero + SECOND + i * SECOND // 10 - 5_000, rank=rank, pid=pid) for i in range(3)]
    return kineto.write(path, events, **options)


def keras_profile(path, first_s):
    """Two steps numbered 0 and 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [
        xplane.Event(name="train", start_ns=n * SECOND, duration_ns=SECOND - 1, stats={"step_num": n, "_r": 1})
        for n in range(2)
    ]
    begin = (START_S + first_s) * SECOND
    data = xplane.profile([xplane.Line(id=77, name="python", events=tuple(steps))], begin, begin + 2 * SECOND)
    path.write_bytes(data.replace(b"node1", b"node0"))  # as the log
    return path


def merged(tmp_path, logs, profiles, **options):
    result = merge(logs, profiles, tmp_path / "a.capture", MergeOptions(**options))
    capture = open_capture(result.capture)
    rows = list(capture.operations())
    return result, pa.Table.from_batches(rows) if rows else None, capture


def steps_of(capture):
    """Numbers of the steps, and the seconds at which they began, after the first one."""
    spans = capture.spans.filter(pc.field("kind") == "step")
    begins = [round(begin / SECOND) for begin in spans["start_ns"].to_pylist()]
    return spans["step"].to_pylist(), [begin - begins[0] for begin in begins]


def test_anchors_place_the_log_and_what_the_profiler_wrote_is_left_out(tmp_path):
    path = profile(tmp_path / "cycle.pt.trace.json.gz", PIDS[0])
    result, ops, capture = merged(tmp_path, [log(tmp_path, PIDS[0])], [path])
    (clock,) = result.info.clock
    assert (clock.method, clock.offset_ns) == ("anchors", pytest.approx(3_000_000, abs=10_000))
    assert ops.filter(pc.field("length") == 4096)["step"].to_pylist() == [0, 1, 2, 3]
    assert [source.kind for source in result.info.sources] == ["darshan", "kineto"]
    assert sorted(capture.paths()) == ["/data/train.bin", f"/run/dxt-anchor.node.{PIDS[0]}.bin"]
    said = [text for text in result.info.warnings if "that the profiler itself wrote" in text]
    assert "/tmp/tmpabc.json.tmp" in said[0]
    cut = profile(tmp_path / "cut.pt.trace.json", PIDS[0])
    cut.write_bytes(cut.read_bytes()[:-900])
    result, _, _ = merged(tmp_path, [log(tmp_path, PIDS[0])], [cut], force=True)
    assert any("is damaged after" in text for text in result.info.warnings)


# Profiles find their ranks by anchor or process, whatever the names of their folders say; ranks are numbered as
# torch.distributed numbers them, and else in the order of the starts of their processes.
@pytest.mark.parametrize(("anchors", "distributed"), [(True, False), (False, False), (False, True)])
def test_profiles_find_their_ranks(tmp_path, anchors, distributed):
    logs = [log(tmp_path, pid, anchors=anchors) for pid in PIDS]
    profiles = []
    for n, pid in enumerate(PIDS):
        path = tmp_path / f"rank{1 - n}/node0_{pid}.1795309101260993922.pt.trace.json"
        around = {"distributedInfo": {"rank": 1 - n}} if distributed else None
        profiles.append(profile(path, pid, anchors=anchors, around=around))
    result, _, _ = merged(tmp_path, logs, profiles)
    order = -1 if distributed else 1
    assert [source.name for source in result.info.sources] == [p.name for p in (*logs[::order], *profiles[::order])]
    assert result.info.ranks == (0, 1)


def test_profiles_of_one_process_are_one_training(tmp_path):
    """Cycles under names of the user's own, runs that begin with step 0 again, and two fits of a Keras program."""
    own = [log(tmp_path, PIDS[0], anchors=False)]
    cycles = [profile(tmp_path / f"{n}.json", PIDS[0], anchors=False, first=n, count=3) for n in (0, 3)]
    _, _, capture = merged(tmp_path, own, cycles)
    assert steps_of(capture) == (list(range(6)), list(range(6)))
    fits = [keras_profile(tmp_path / f"rank0/plugins/profile/{n}/node.xplane.pb", n) for n in (5, 1)]
    for profiles in (fits, [fits[0], keras_profile(tmp_path / "rank0/phase2/plugins/profile/b/node.xplane.pb", 1)]):
        result, _, capture = merged(tmp_path, own, profiles, align="0", force=True)
        assert steps_of(capture) == ([0, 1, 2, 3], [0, 1, 4, 5])
        assert [source.kind for source in result.info.sources] == ["darshan", "xplane", "xplane"]
    for again in ([*cycles, profile(tmp_path / "again.json", PIDS[0], anchors=False)], [fits[0]] * 2):
        with pytest.raises(ProfileError, match="are both of rank 0"):
            merged(tmp_path, own, again, force=True)


def given(name):
    folder = recorded(f"captures/{name}")
    return find_recordings(folder / "logs"), find_profiles(folder / "profile")


@pytest.mark.parametrize(
    ("align", "methods"), [("anchors", {"nesting", "wall"}), ("wall", {"wall"}), ("0.5", {"seconds"})]
)
def test_workers_are_placed_whatever_method_places_their_rank(tmp_path, align, methods):
    result, _, _ = merged(tmp_path, *given("torch_images"), align=align)
    assert {clock.method for clock in result.info.clock if clock.worker} == methods


# On a GPU.


def test_a_profile_of_many_kernels_has_an_answer(tmp_path):
    events = [kineto.mark(0, 0, 1_000_000), kineto.mark(1, 1_000_000, 2_000_000)]
    events += [kineto.kernel("k", 20 * i, 20 * i + 5, i) for i in range(100_000)]
    _, _, capture = merged(tmp_path, (), [kineto.write(tmp_path / "p" / "t.pt.trace.json", events)])
    assert capture.spans.num_rows > 100_000
    assert dxt_replay.summary(capture).loop.compute_pct == pytest.approx(25)
    with pytest.raises(dxt_replay.NoStorageLimitError, match="recorded"):
        dxt_replay.storage_limit(capture)


def test_use_of_several_gpus_is_their_mean_and_includes_collectives(tmp_path):
    """Of two GPUs one worked 30 and one 50 of 100 ns, both within NCCL for 20 more; the third never worked."""
    spans = [
        Span("step", 0, 100, step=0), Span("compute", 0, 30, "gpu compute", step=0, thread=0),
        Span("compute", 10, 60, "gpu compute", step=0, thread=1), Span("collective", 60, 80, "ncclKernel", step=0),
        Span("input_wait", 50, 60, "fetch", step=0), Span("other", 100, 200, "evaluation"),
        Span("compute", 100, 140, "gpu compute", thread=1),
    ]  # fmt: skip
    found = build_capture(tmp_path, spans=spans).spans
    assert computed_in_loops(found) == ((50 + 70) // 2, 100)
    assert gpu_busy_in_profile(found) == (50 + 70 + 40, 400, 2)
    spans = [
        Span("step", 0, 100, step=0), Span("input_wait", 0, 50, "fetch", step=0),
        Span("compute", 20, 90, "gpu step", step=0),
    ]  # fmt: skip
    loop = dxt_replay.summary(build_capture(tmp_path / "b", spans=spans)).loop  # a GPU that works does not wait
    assert (loop.input_wait_pct, loop.compute_pct, loop.compute_at_most) == (20, 70, True)


# DFTracer's annotations.


def pfw(path, *events):
    """A file of DFTracer: (name, category, start, duration) in us after START_S."""
    rows = [
        {"id": 1, "pid": 100, "tid": 100, "ph": "X", "args": {}, "name": name, "cat": cat, "ts": START_S * 10**6 + at,
         "dur": dur} for name, cat, at, dur in (("start", "dftracer", 0, 0), *events)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_annotations_of_dftracer_beside_strace(tmp_path):
    (trace := tmp_path / "run.strace").write_text(
        f'100 {START_S}.000000 execve("/usr/bin/python", [...], 0x7) = 0 <0.0001>\n'
        f'100 {START_S}.001000 openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x> <0.0001>\n'
        f'100 {START_S}.002100 read(3</d/x>, ""..., 10) = 10 <0.0001>\n'
    )
    events = [("fetch", "dataloader", 2000, 500), ("compute", "compute", 2600, 300),
              ("fetch", "dataloader", 3000, 100), ("compute", "compute", 3200, 300)]  # fmt: skip
    result, rows, capture = merged(tmp_path, [trace], [pfw(tmp_path / "a.pfw", *events)])
    zero_us = capture.info.job.zero_ns // 1000 - START_S * 10**6
    spans = capture.spans.filter(pc.field("kind") == "step").to_pylist()
    times = [(row["start_ns"] // 1000 + zero_us, row["end_ns"] // 1000 + zero_us, row["step"]) for row in spans]
    assert times == [(2000, 3000, 0), (3000, 3500, 1)]
    assert rows["step"].to_pylist() == [-1, 0]
    assert [source.kind for source in result.info.sources] == ["strace", "dftracer"]
    with pytest.raises(ProfileError, match="without annotations"):
        merged(tmp_path, [log(tmp_path, 1)], [pfw(tmp_path / "b.pfw")], force=True)
