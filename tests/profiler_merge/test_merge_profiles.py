"""Profiles to captures: beside logs of processes and alone, where a capture says of I/O that none was recorded; several
profiles of one process, which are one training; use of the GPU; and DFTracer's annotations beside another trace."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.given_files import find_profiles, find_recordings
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.replay.causal.storage_limit import storage_limit
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.measures.span_times import computed_in_loops, gpu_busy_in_profile
from dxt_replay.traces.store.reader import open_capture
from tests import kineto_writer as kineto
from tests import xplane_writer as xplane
from tests.capture_builder import Span, build_capture
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.kineto_writer import START_NS
from tests.places import recorded

MS, SECOND = 10**6, 10**9
START_S = START_NS // SECOND
ZERO = START_S * SECOND - START_NS + 3 * MS  # the log's clock is 3 ms early
PIDS = (4711, 4712)
NAMES = {
    1: b"/data/train.bin", 8: b"/tmp/tmpabc.json", 9: b"/tmp/tmpabc.json.tmp", 10: b"/run/p/cycle.pt.trace.json.gz",
}  # fmt: skip
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


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


def profile(
    path, pid=PIDS[0], *, first=0, count=5, begin_ns=ZERO + 2 * SECOND, step_ns=SECOND, anchors=False, rank=None, **more
):
    """Steps, one after the other: 30 % of each for a batch, and 60 % on a GPU at its end."""
    own, events = {"pid": pid, "tid": pid}, []
    for step in range(first, first + count):
        begin, end = begin_ns + step * step_ns, begin_ns + (step + 1) * step_ns
        events += [
            kineto.mark(step, begin, end, **own),
            kineto.event(FETCH, begin, begin + step_ns * 3 // 10, cat="user_annotation", **own),
            kineto.launch(end - step_ns * 6 // 10, end - step_ns * 6 // 10 + 1000, step + 1) | own,
            kineto.kernel("gemm", end - step_ns * 6 // 10, end, step + 1),
        ]
    if anchors:
        events += [kineto.anchor(i, ZERO + SECOND + i * SECOND // 10 - 5_000, pid=pid) for i in range(3)]
    around = None if rank is None else {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
    return kineto.write(path, events, around=around, **more)


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
    result = merge(logs, profiles, tmp_path / "a.capture", MergeOptions(force=True, **options))
    capture = open_capture(result.capture)
    rows = list(capture.operations())
    return result, pa.Table.from_batches(rows) if rows else None, capture


def steps_of(capture):
    """Numbers of the steps, and the seconds at which they began, after the first one."""
    spans = capture.spans.filter(pc.field("kind") == "step")
    begins = [round(begin / SECOND) for begin in spans["start_ns"].to_pylist()]
    return spans["step"].to_pylist(), [begin - begins[0] for begin in begins]


def spans_of(capture, kind):
    """(rank, start, end) of the spans of a kind, in ns of the capture."""
    rows = capture.spans.to_pylist()
    return [(row["rank"], row["start_ns"], row["end_ns"]) for row in rows if row["kind"] == kind]


# Beside logs.


def test_anchors_place_the_log_and_what_the_profiler_wrote_is_left_out(tmp_path):
    path = profile(tmp_path / "cycle.pt.trace.json.gz", anchors=True)
    result, ops, capture = merged(tmp_path, [log(tmp_path, PIDS[0])], [path])
    (clock,) = result.info.clock
    assert (clock.method, clock.offset_ns) == ("anchors", pytest.approx(3 * MS, abs=10_000))
    assert ops.filter(pc.field("length") == 4096)["step"].to_pylist() == [0, 1, 2, 3]
    assert [source.kind for source in result.info.sources] == ["darshan", "kineto"]
    assert sorted(capture.paths()) == ["/data/train.bin", f"/run/dxt-anchor.node.{PIDS[0]}.bin"]
    said = [text for text in result.info.warnings if "that the profiler itself wrote" in text]
    assert "/tmp/tmpabc.json.tmp" in said[0]
    cut = profile(tmp_path / "cut.pt.trace.json", anchors=True)
    cut.write_bytes(cut.read_bytes()[:-900])
    result, _, _ = merged(tmp_path, [log(tmp_path, PIDS[0])], [cut])
    assert any("is damaged after" in text for text in result.info.warnings)


# Profiles find their ranks by anchor or process, whatever the names of their folders say; ranks are numbered as
# torch.distributed numbers them, and else in the order of the starts of their processes.
@pytest.mark.parametrize(("anchors", "distributed"), [(True, False), (False, False), (False, True)])
def test_profiles_find_their_ranks(tmp_path, anchors, distributed):
    logs = [log(tmp_path, pid, anchors=anchors) for pid in PIDS]
    profiles = []
    for n, pid in enumerate(PIDS):
        path = tmp_path / f"rank{1 - n}/node0_{pid}.1795309101260993922.pt.trace.json"
        profiles.append(profile(path, pid, anchors=anchors, rank=1 - n if distributed else None))
    result, _, _ = merged(tmp_path, logs, profiles)
    order = -1 if distributed else 1
    assert [source.name for source in result.info.sources] == [p.name for p in (*logs[::order], *profiles[::order])]
    assert result.info.ranks == (0, 1)


def test_profiles_of_one_process_are_one_training(tmp_path):
    """Cycles under names of the user's own, runs that begin with step 0 again, and two fits of a Keras program."""
    own = [log(tmp_path, PIDS[0], anchors=False)]
    cycles = [profile(tmp_path / f"{n}.json", first=n, count=3) for n in (0, 3)]
    _, _, capture = merged(tmp_path, own, cycles)
    assert steps_of(capture) == (list(range(6)), list(range(6)))
    fits = [keras_profile(tmp_path / f"rank0/plugins/profile/{n}/node.xplane.pb", n) for n in (5, 1)]
    for profiles in (fits, [fits[0], keras_profile(tmp_path / "rank0/phase2/plugins/profile/b/node.xplane.pb", 1)]):
        result, _, capture = merged(tmp_path, own, profiles, align="0")
        assert steps_of(capture) == ([0, 1, 2, 3], [0, 1, 4, 5])
        assert [source.kind for source in result.info.sources] == ["darshan", "xplane", "xplane"]
    for again in ([*cycles, profile(tmp_path / "again.json")], [fits[0]] * 2):
        with pytest.raises(ProfileError, match="are both of rank 0"):
            merged(tmp_path, own, again)


@pytest.mark.parametrize(
    ("align", "methods"), [("anchors", {"nesting", "wall"}), ("wall", {"wall"}), ("0.5", {"seconds"})]
)
def test_workers_are_placed_whatever_method_places_their_rank(tmp_path, align, methods):
    folder = recorded("captures/torch_images")
    given = find_recordings(folder / "logs"), find_profiles(folder / "profile")
    assert {clock.method for clock in merged(tmp_path, *given, align=align)[0].info.clock if clock.worker} == methods


def test_annotations_of_dftracer_beside_strace(tmp_path):
    (trace := tmp_path / "run.strace").write_text(
        f'100 {START_S}.000000 execve("/usr/bin/python", [...], 0x7) = 0 <0.0001>\n'
        f'100 {START_S}.001000 openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x> <0.0001>\n'
        f'100 {START_S}.002100 read(3</d/x>, ""..., 10) = 10 <0.0001>\n'
    )

    def annotated(*events):
        """A file of DFTracer: (name, category, start, duration) in us after START_S."""
        rows = [
            {"id": 1, "pid": 100, "tid": 100, "ph": "X", "args": {}, "name": name, "cat": cat, "dur": dur,
             "ts": START_S * 10**6 + at} for name, cat, at, dur in (("start", "dftracer", 0, 0), *events)
        ]  # fmt: skip
        (path := tmp_path / "a.pfw").write_text("\n".join(map(json.dumps, rows)) + "\n")
        return path

    events = [("fetch", "dataloader", 2000, 500), ("compute", "compute", 2600, 300),
              ("fetch", "dataloader", 3000, 100), ("compute", "compute", 3200, 300)]  # fmt: skip
    result, rows, capture = merged(tmp_path, [trace], [annotated(*events)])
    zero_us = capture.info.job.zero_ns // 1000 - START_S * 10**6
    times = [(start // 1000 + zero_us, end // 1000 + zero_us) for _, start, end in spans_of(capture, "step")]
    assert (times, rows["step"].to_pylist()) == ([(2000, 3000), (3000, 3500)], [-1, 0])
    assert [source.kind for source in result.info.sources] == ["strace", "dftracer"]
    with pytest.raises(ProfileError, match="without annotations"):
        merged(tmp_path, [log(tmp_path, 1)], [annotated()])


# On a GPU.


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


# Without a log.

STEP, STEPS = 10 * MS, 5


@pytest.fixture
def capture(tmp_path):
    return merged(tmp_path, (), [profile(tmp_path / "a.pt.trace.json", begin_ns=777, step_ns=STEP)])[2]


def test_the_steps_are_those_of_the_profile(capture):
    assert spans_of(capture, "step") == [(0, step * STEP, (step + 1) * STEP) for step in range(STEPS)]
    assert sum(end - start for _, start, end in spans_of(capture, "compute")) == STEPS * STEP * 6 // 10
    assert (capture.operation_count(), capture.files.num_rows) == (0, 0)
    job = capture.info.job
    assert (job.zero_ns, job.start_ns, job.run_time_s) == (START_NS + 777, 0, 0)
    assert (capture.info.coverage.bytes, capture.info.coverage.operations) == (None, None)
    assert [source.kind for source in capture.info.sources] == ["kineto"]


def test_ranks_are_on_one_clock_and_phases_of_one_process_are_joined(tmp_path):
    paths = [tmp_path / "p" / f"n_{100 + rank}.17.pt.trace.json" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        profile(path, 100 + rank, rank=rank, begin_ns=3_000 * rank, step_ns=STEP)
    _, _, capture = merged(tmp_path, (), paths[::-1])
    assert (capture.ranks, capture.info.job.nprocs) == ((0, 1), 2)
    assert [(rank, start) for rank, start, _ in spans_of(capture, "step") if start < STEP] == [(0, 0), (1, 3_000)]
    assert any("how far they differ is not known" in text for text in capture.info.warnings)
    phases = [profile(tmp_path / f"{n}" / f"a_4711.{n}.pt.trace.json", begin_ns=n * SECOND) for n in (0, 50)]
    assert len(spans_of(merged(tmp_path, (), phases)[2], "step")) == 2 * STEPS


def said(capfd, *arguments):
    """The error of a command that refuses, in one line."""
    capfd.readouterr()
    assert main([str(each) for each in arguments]) == 2
    return " ".join(capfd.readouterr().err.split())


def test_what_cannot_be_placed_is_refused(tmp_path, capfd):
    two = [profile(tmp_path / f"x{pid}" / "a.pt.trace.json", pid) for pid in (1, 2)]
    empty = kineto.write(tmp_path / "e.pt.trace.json", [kineto.event("aten::add", 0, 10, cat="other")])
    undated = profile(tmp_path / "rank1" / "u.pt.trace.json", generation=3, begin_ns=0, step_ns=STEP)
    dated = profile(tmp_path / "rank0" / "d.pt.trace.json")
    for given, text in (
        (two, "no rank was found for the profile"), ([empty], f"{empty} shows no steps"),
        ([dated, undated], f"{undated} has no date"), ([dated, "--align", "wall"], "there is none: leave it out"),
    ):  # fmt: skip
        assert text in said(capfd, "merge", *given, "-o", tmp_path / "p.capture")
    assert not (tmp_path / "p.capture").exists()
    _, _, capture = merged(tmp_path, (), [undated])
    assert (capture.ranks, capture.info.job.zero_ns) == ((1,), 0)
    assert spans_of(capture, "step") == [(1, step * STEP, (step + 1) * STEP) for step in range(STEPS)]


def test_no_command_judges_the_storage(capture, tmp_path, capfd):
    def output(*arguments):
        capfd.readouterr()
        assert main([*arguments]) == 0
        return capfd.readouterr().out

    path = str(capture.path)
    text = " ".join(output("summary", path).split())
    for shown in ("on other storage is not known: no I/O was recorded.", "how long the job took is not known"):
        assert shown in text
    assert not any(hidden in text for hidden in ("storage busy", "reads"))
    found = json.loads(output("summary", path, "--json"))
    assert found["not_judged"] == found["storage_limit"]["reason"] == "no I/O was recorded"
    io = [found["operations"], found["bytes"], found["io_time_s"]]
    assert {value for part in io for value in part.values()} == {None}
    assert [found[name] for name in ("files", "in_flight_s", "other_io_s")] == [None] * 3
    loop = {name: found["loop"][name] for name in ("storage_gain_s", "compute_pct", "input_wait_pct")}
    assert loop == pytest.approx({"storage_gain_s": None, "compute_pct": 60, "input_wait_pct": 30})
    assert found["steps"]["count"] == STEPS
    for name in ("overlap", "ranks", "steps", "timeline"):
        rows = dxt_replay.table(capture, name)
        of_io = [column for column in rows.columns if column.startswith(("io_", "reads", "writes", "bytes"))]
        assert of_io
        assert rows[of_io].isna().all(axis=None)
    (finding,) = findings(capture)
    assert (finding.code, finding.title) == ("input-bound", "Training waits for input")
    assert "the cause is not known: no I/O was recorded" in finding.evidence
    # Several jobs, the page, and a replay.
    row = json.loads(output("summary", path, path, "--json"))["jobs"][0]
    assert (row["steps"], row["error"]) == (STEPS, None)
    assert {row[name] for name in ("reads", "bytes_read", "files", "io_s", "traced_pct", "storage_limit_pct")} == {None}
    output("report", path, "-o", str(tmp_path / "p.html"))
    page = (tmp_path / "p.html").read_text(encoding="utf-8").partition("<script")[0]
    assert "No I/O was recorded." in page
    assert "I/O in flight" not in page.partition("Words of this page")[0]
    (tmp_path / "t").mkdir()
    text = said(capfd, "run", path, "--target", tmp_path / "t", "--pace", "timed", "-o", tmp_path / "r.capture")
    assert "was made of marks or profiles alone, so that there is no I/O to replay: merge them with the job" in text
    assert not (tmp_path / "r.capture").exists()


def test_steps_without_any_operation_do_not_end_in_a_traceback(tmp_path):
    """Such as of a log of which --exclude left nothing."""
    spans = [Span("step", start_ns=i * 1000, end_ns=i * 1000 + 900, step=i) for i in range(4)]
    assert storage_limit(build_capture(tmp_path, spans=spans)).saved_ns == 0
