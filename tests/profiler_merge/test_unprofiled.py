"""Steps that no profile shows: of made loops with known truth, and of recorded ones that are cut to some steps."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dxt_replay.profiler_merge.given_files import find_profiles, find_recordings
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.unprofiled import Extended, extended_spans
from dxt_replay.traces.measures.span_times import extended_steps, whole_steps
from dxt_replay.traces.schema import APIS, ORIGINS, READ, SPAN_KINDS, TRACED, codes
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import Span, spans_table
from tests.places import CAPTURES, recorded

MS = 1_000_000
WAIT_NAME = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def operations(rows):
    """Columns of reads (start, end, file_id, offset, length, lane), in start order."""
    names = ("start_ns", "end_ns", "file_id", "offset", "length", "lane")
    columns = dict(zip(names, np.array(sorted(rows), dtype=np.int64).T, strict=True))
    same = {"op": READ, "api": APIS.index("POSIX"), "origin": TRACED}
    return columns | {name: np.full(len(rows), code, np.int8) for name, code in same.items()}


def loader_job(steps=200, batch=8, workers=2, read_ms=1.0, step_ms=30.0, seed=1):
    """A loop whose workers read `batch` files a step and may be two batches each ahead; (operations, fetches, busy)."""
    random = np.random.default_rng(seed)
    busy = (step_ms * MS * random.uniform(0.95, 1.05, steps)).astype(np.int64)
    rows, fetch, ready = [], np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    free, ahead, file = [0] * workers, 2 * workers, 0
    for step in range(steps + ahead):
        if step >= ahead:
            number = step - ahead
            before = fetch[number - 1] + busy[number - 1] if number else 0
            fetch[number] = max(before + MS // 5, ready[number])
        if step < steps:
            worker = step % workers
            now = max(free[worker], int(fetch[step - ahead]) if step >= ahead else 0) + MS // 10
            for _ in range(batch):
                end = now + int(read_ms * MS * random.uniform(0.5, 1.5))
                rows.append((now, end, file, 0, 4096 + file % 7, 1 + worker))
                now, file = end + MS // 20, file + 1
            free[worker] = ready[step] = now + MS // 2
    return operations(rows), fetch, busy


def own_reads_job(steps=120, batch=6, compute_ms=20.0, seed=2):
    """A loop whose training thread reads `batch` blocks itself, and now and then a block of labels."""
    random = np.random.default_rng(seed)
    rows, fetch, now = [], [], 0
    for step in range(steps):
        for block in range(batch + (step % 17 == 3)):
            end = now + int(MS * random.uniform(0.2, 0.4))
            rows.append((now, end, 0, 4096 * (step * batch + block), 4096, 0))
            now = end + 10_000
        fetch.append(now)
        now += int(compute_ms * MS * random.uniform(0.9, 1.1))
    return operations(rows), np.array(fetch), np.append(np.diff(fetch), int(compute_ms * MS))


def profile_of(fetch, busy, shown, wait_ns):
    """Spans of the steps `shown` (numbers): a wait of `wait_ns` before the fetch, then compute and a collective."""
    spans = []
    for step in shown:
        begin, had = int(fetch[step]) - wait_ns, int(fetch[step])
        end = int(fetch[step + 1]) - wait_ns if step + 1 < len(fetch) else had + int(busy[step])
        spans += [
            Span(kind="step", start_ns=begin, end_ns=end, name="ProfilerStep", thread=9, step=step),
            Span(kind="input_wait", start_ns=begin, end_ns=had, name=WAIT_NAME, thread=9, step=step),
            Span(kind="compute", start_ns=had, end_ns=had + int(0.8 * busy[step]), name="compute", step=step),
            Span(kind="collective", start_ns=end - 2 * MS, end_ns=end - MS, name="allreduce", thread=9, step=step),
        ]
    return spans_table(spans)


def extended(job, shown, *, wait_ns=MS // 5, own=False, limits=None):
    ops, fetch, busy = job
    process = np.zeros(len(ops["lane"]), np.int64) if own else ops["lane"]
    return extended_spans(profile_of(fetch, busy, shown, wait_ns), ops, process, lambda file: f"/d/{file}.jpg", limits)


def assert_about_right(found, truth, shown, worst_ms):
    """The number of steps is within what is said of it, and fetches lie where they were as far as that allows."""
    assert isinstance(found, Extended)
    assert (found.first, found.profiled) == (0, len(shown))
    assert abs(found.steps - len(truth)) <= max(found.unsure * len(truth), 1)
    length = np.median(np.diff(truth))
    waits = found.spans.filter(pc.field("kind") == "input_wait")
    for step, time in zip(waits["step"].to_pylist(), waits["end_ns"].to_pylist(), strict=True):
        apart = abs(step - np.abs(np.array(shown) - step).min())
        if step < len(truth):
            assert abs(time - truth[step]) < worst_ms * MS + max(found.unsure * apart, 1) * length


@pytest.mark.parametrize("shown", [range(60, 61), range(60, 65), [*range(20, 23), *range(120, 123)], range(150, 155)])
@pytest.mark.parametrize(("read_ms", "worst_ms"), [(1.0, 40.0), (12.0, 130.0)])
def test_steps_of_a_loader_with_workers_lie_about_where_they_were(shown, read_ms, worst_ms):
    job = loader_job(read_ms=read_ms)
    assert_about_right(extended(job, shown), job[1], shown, worst_ms)


@pytest.mark.parametrize("shown", [range(10, 13), range(50, 58)])
def test_steps_of_a_thread_that_reads_itself_lie_about_where_they_were(shown):
    job = own_reads_job()
    assert_about_right(extended(job, shown, wait_ns=3 * MS, own=True), job[1], shown, 5.0)


def test_profiled_spans_stay_and_the_others_are_marked():
    job = loader_job()
    shown = range(60, 65)
    spans = profile_of(job[1], job[2], shown, MS // 5)
    made = extended(job, shown)
    found, found_steps = made.spans, made.steps
    assert found.slice(0, spans.num_rows).drop(["origin"]).equals(spans.drop(["origin"]))
    origin = [ORIGINS[code] for code in codes(found, "origin")]
    assert origin == ["traced"] * spans.num_rows + ["reconstructed"] * (found.num_rows - spans.num_rows)
    assert extended_steps(found) == (found_steps - 5, found_steps)
    steps = whole_steps(found).sort_by("start_ns")
    begin, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    assert (begin[1:] >= end[:-1]).all()
    assert (begin < end).all()
    assert steps["step"].to_pylist() == list(range(found_steps))
    for kind in ("compute", "collective", "input_wait"):  # reads that come in a burst leave no room for them
        assert 0.9 * found_steps < (codes(found, "kind") == SPAN_KINDS.index(kind)).sum() <= found_steps


def test_all_steps_what_another_rank_shows_and_reads_without_a_rhythm():
    assert extended(loader_job(), range(200)) is None
    assert extended(own_reads_job(), range(120), wait_ns=3 * MS, own=True) is None
    found = extended(loader_job(), range(60, 65), limits=(0, 209))
    assert (found.first, found.last, whole_steps(found.spans).num_rows) == (0, 209, 210)
    ops, fetch, busy = loader_job()
    ops["lane"] = np.zeros_like(ops["lane"])  # threads of the process itself, which may read any number of steps ahead
    found = extended((ops, fetch, busy), range(12, 15), own=True)
    assert found == "the profiled steps are too few, or too early in the job, to show how much one step reads"


# capture -> (ranks, steps)
RECORDED = {"torch_hdf5": (2, 126), "torch_mmap/pread": (1, 100)}


def cut_profile(path, folder, first=40, stop=45):
    """A profile with the steps [first, stop) and the anchors of a whole one."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    begins = {e["name"]: e["ts"] for e in trace["traceEvents"] if e.get("name", "").startswith("ProfilerStep#")}
    begin, end = begins[f"ProfilerStep#{first}"], begins[f"ProfilerStep#{stop}"]
    trace["traceEvents"] = [
        e
        for e in trace["traceEvents"]
        if e["ph"] == "M" or "dxt_anchor" in e["name"] or (e.get("cat") != "Trace" and begin <= e["ts"] < end)
    ]
    made = folder / path.parent.name / path.name
    made.parent.mkdir(exist_ok=True)
    made.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return made


@pytest.mark.skipif(not (CAPTURES / "torch_hdf5").is_dir(), reason="no recorded captures beside this checkout")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_jobs_of_which_five_steps_are_known(tmp_path, name):
    ranks, steps = RECORDED[name]
    logs = find_recordings(recorded(f"captures/{name}") / "logs")
    whole = find_profiles(CAPTURES / name / "profile")
    full = merge(logs, whole, tmp_path / "a.capture")
    assert "extended" not in full.info.made_by
    cut = merge(logs, [cut_profile(path, tmp_path) for path in whole], tmp_path / "b.capture")
    said = cut.as_json()["extended"]
    (text,) = [text for text in cut.info.warnings if "training steps" in text]
    assert "the profile shows 5 training steps; the other" in text
    assert (said["profiled"], said["first"]) == (5, 0)
    assert abs(said["steps"] - steps) <= 0.3 * steps
    for rank in range(ranks):
        begins = []
        for result in (full, cut):
            spans = whole_steps(open_capture(result.capture).spans).filter(pc.field("rank") == rank)
            times = spans["start_ns"].to_numpy() + result.info.job.zero_ns
            begins.append(dict(zip(spans["step"].to_pylist(), times.tolist(), strict=True)))
        errors = [abs(begins[1][step] - begins[0][step]) for step in begins[0].keys() & begins[1].keys()]
        assert np.median(errors) < 120 * MS
    if name == "torch_mmap/pread":
        reads = pa.Table.from_batches(list(open_capture(cut.capture).operations(columns=["length", "step"])))
        numbers = reads["step"].to_numpy()[reads["length"].to_numpy() == 2050]
        assert len(np.unique(numbers[numbers >= 0])) >= 98


def test_what_tf_data_read_ahead_is_no_step() -> None:
    """20 steps of one read each; the profile shows the reads of 4 more batches that nobody fetched."""
    rows, spans = [], []
    for number in range(24):
        begin = 10 * MS * number
        rows.append((begin + MS, begin + 2 * MS, 0, 4096 * number, 4096, 1))
        fetched = begin + 4 * MS if number < 20 else None
        spans.append(Span("pipeline", begin, begin + 3 * MS, name="PrefetchProduce", thread=5, fetched_ns=fetched))
        if number < 20:
            spans.append(Span("step", begin, begin + 9 * MS, name="train", thread=1, step=number))
            spans.append(Span("input_wait", begin, begin + 4 * MS, name="IteratorGetNext", thread=1, step=number))
    columns = operations(rows)
    assert extended_spans(spans_table(spans), columns, np.zeros(len(rows), np.int64), str) is None
    unseen = [span for span in spans if span.kind != "pipeline"]
    assert extended_spans(spans_table(unseen), columns, np.zeros(len(rows), np.int64), str) is not None
