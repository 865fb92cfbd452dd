"""Spans from small written profiles, rule by rule, and on the real captures."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.profiles.spans import main_line, profile_spans
from dxt_replay.profiler_merge.profiles.xplane import find_profiles, read_profile
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import NO_STEP, SPAN_KINDS, SPANS_SCHEMA, UNION_THREAD, table_from_columns
from tests import xplane_writer as writer
from tests.examples import examples
from tests.places import CAPTURES
from tests.xplane_writer import START_NS, Event, Line

MAIN, COMPUTE, EIGEN, DATA, GET_NEXT = 11, 22, 33, 44, 55

CLASSES = {
    MAIN: "python",
    COMPUTE: "tf_Compute/22",
    EIGEN: "tf_numa_-1_Eigen/33",
    DATA: "tf_data_iterator_resource/44",
    GET_NEXT: "tf_data_iterator_get_next/55",
}


def event(name, start, end, **stats):
    return Event(name=name, start_ns=start, duration_ns=end - start, stats=stats)


def step(number, start, end, name="train"):
    return event(name, start, end, step_num=number)


@pytest.fixture
def profile(tmp_path):
    """Makes a profile of {thread: [events]}; threads are the constants above."""

    def profile(threads):
        lines = [
            Line(
                id=thread,
                name=CLASSES[thread],
                events=tuple(sorted(events, key=lambda e: (e.start_ns, -e.duration_ns))),
            )
            for thread, events in threads.items()
        ]
        path = tmp_path / "node1.xplane.pb"
        path.write_bytes(writer.profile(lines))
        return read_profile(path)

    return profile


def rows(spans, kind):
    """(name, thread, step, start, end) of the spans of a kind, times from the profile's start."""
    chosen = np.flatnonzero(spans.kind == SPAN_KINDS.index(kind))
    columns = (spans.name, spans.thread, spans.step, spans.start_ns - START_NS, spans.end_ns - START_NS)
    return [tuple(column[row] for column in columns) for row in chosen]


def step_numbers(spans):
    return spans.step[spans.kind == SPAN_KINDS.index("step")].tolist()


def step_times(spans):
    """Steps of (start, end, {kind: ns}) from the profile's start; an instant counts for the first kind it is in."""
    found = []
    taken = Intervals()
    times = {}
    for kind in ("input_wait", "collective", "checkpoint", "compute"):
        mine = spans.kind == SPAN_KINDS.index(kind)
        times[kind] = Intervals.union_of(spans.start_ns[mine], spans.end_ns[mine]).minus(taken)
        taken = taken.union(times[kind])
    for row in np.flatnonzero(spans.kind == SPAN_KINDS.index("step")):
        start, end = spans.start_ns[row : row + 1], spans.end_ns[row : row + 1]
        shares = {kind: int(mine.covered_within(start, end)[0]) for kind, mine in times.items()}
        found.append((int(start[0]) - START_NS, int(end[0]) - START_NS, shares))
    return found


def test_a_step_in_full(profile):
    found = profile(
        {
            MAIN: [
                step(7, 100, 1000),
                event("next_batch", 100, 300),
                event("IteratorGetNextOp::DoCompute", 120, 280, id=1),
                event("EagerLocalExecute: IteratorGetNext", 110, 310),
                event("EagerLocalExecute: __inference_grads_1", 400, 600),
                event("allreduce", 700, 800),
                event("EagerLocalExecute: Cast", 750, 850),
                event("checkpoint", 1000, 1500),
                event("EagerLocalExecute: SaveV2", 1100, 1600),
                event("EagerLocalExecute: RestoreV2", 1700, 1800),
            ],
            COMPUTE: [event("a/conv:Conv2D", 550, 650), event("b:_Send", 250, 320)],
        }
    )
    spans = profile_spans(found)
    assert rows(spans, "step") == [("train", MAIN, 7, 100, 1000)]
    assert rows(spans, "input_wait") == [("IteratorGetNextOp::DoCompute", MAIN, 7, 100, 300)]
    assert rows(spans, "collective") == [("allreduce", MAIN, 7, 700, 800)]
    assert rows(spans, "checkpoint") == [
        ("checkpoint", MAIN, NO_STEP, 1000, 1600),
        ("restore", MAIN, NO_STEP, 1700, 1800),
    ]
    assert rows(spans, "compute") == [
        ("compute", UNION_THREAD, 7, 300, 320),
        ("compute", UNION_THREAD, 7, 400, 650),
        ("compute", UNION_THREAD, 7, 800, 850),
    ]
    shares = {"input_wait": 200, "collective": 100, "checkpoint": 0, "compute": 320}
    assert (step_numbers(spans), step_times(spans)) == ([7], [(100, 1000, shares)])
    assert spans.start_ns.tolist() == sorted(spans.start_ns.tolist())


def test_spans_fit_the_contract(profile):
    spans = profile_spans(profile({MAIN: [step(0, 0, 10), event("\udcff", 20, 30)]}))
    columns = {
        "rank": 0,
        "thread": spans.thread,
        "kind": spans.kind,
        "name": spans.name,
        "step": spans.step,
        "start_ns": spans.start_ns,
        "end_ns": spans.end_ns,
    }
    table = table_from_columns(columns, SPANS_SCHEMA)
    assert table.column("name").to_pylist() == ["train", "\\xff"]
    assert table.column("kind").to_pylist() == ["step", "other"]


def test_reading_in_the_training_thread_keeps_the_annotation_as_name(profile):
    spans = profile_spans(profile({MAIN: [step(0, 0, 100), event("next_batch", 10, 60)]}))
    assert rows(spans, "input_wait") == [("next_batch", MAIN, 0, 10, 60)]


def test_keras_waits_on_a_thread_of_its_own(profile):
    spans = profile_spans(profile({MAIN: [step(0, 0, 100)], GET_NEXT: [event("IteratorGetNextOp::DoCompute", 10, 60)]}))
    assert rows(spans, "input_wait") == [("IteratorGetNextOp::DoCompute", GET_NEXT, 0, 10, 60)]


def test_an_iterator_inside_the_pipeline_is_no_input_wait(profile):
    spans = profile_spans(profile({MAIN: [step(0, 0, 100)], DATA: [event("IteratorGetNextOp::DoCompute", 10, 60)]}))
    assert rows(spans, "input_wait") == []


def test_a_union_over_threads_has_no_thread(profile):
    spans = profile_spans(
        profile({MAIN: [step(0, 0, 100), event("allreduce", 10, 30)], COMPUTE: [event("x:HorovodAllreduce", 20, 50)]})
    )
    assert rows(spans, "collective") == [("allreduce", UNION_THREAD, 0, 10, 50)]


@pytest.mark.parametrize(
    "name",
    [
        "dist/HorovodAllreduce_grads:HorovodAllreduce",
        "EagerLocalExecute: CollectiveReduceV2",
        "c:CollectiveReduceV3",
        "c:NcclAllReduce",
        "EagerLocalExecute: HorovodBroadcast",
    ],
)
def test_collective_operations(profile, name):
    spans = profile_spans(profile({MAIN: [step(0, 0, 100), event(name, 10, 30)]}))
    assert rows(spans, "collective") == [(name, MAIN, 0, 10, 30)]
    assert rows(spans, "compute") == []


def test_eigen_regions_count_as_compute(profile):
    marks = [(10, "Start"), (15, "Stop"), (20, "Start"), (30, "Stop"), (35, "Stop"), (40, "Start")]
    regions = [event(f"ThreadpoolListener::{kind}Region", at, at) for at, kind in marks]
    spans = profile_spans(profile({MAIN: [step(0, 0, 100)], EIGEN: regions, COMPUTE: regions}))
    assert [row[3:] for row in rows(spans, "compute")] == [(10, 15), (20, 30)]


def test_compute_is_cut_at_step_bounds(profile):
    busy = event("EagerLocalExecute: f", 50, 250)
    spans = profile_spans(profile({MAIN: [step(3, 0, 100), step(4, 100, 200)], COMPUTE: [event("f:F", 50, 250)]}))
    assert [row[2:] for row in rows(spans, "compute")] == [(3, 50, 100), (4, 100, 200), (NO_STEP, 200, 250)]
    assert busy.duration_ns == sum(row[4] - row[3] for row in rows(spans, "compute"))


def test_gpu_streams_count_as_compute(tmp_path):
    stream = Line(
        id=14, name="Stream #14(Compute)", events=(event("gemm", 10, 30), event("ncclKernel_AllReduce_f32", 30, 40))
    )
    planes = [
        writer.plane("/host:CPU", [Line(id=MAIN, name="python", events=(step(0, 0, 100),))]),
        writer.plane("/device:GPU:0", [stream]),
        writer.plane("Task Environment", stats={"profile_start_time": START_NS}),
    ]
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(writer.space(planes))
    spans = profile_spans(read_profile(path))
    assert [row[3:] for row in rows(spans, "compute")] == [(10, 30)]
    assert [row[3:] for row in rows(spans, "collective")] == [(30, 40)]


def test_pipeline_keeps_the_outermost_event_of_each_thread(profile):
    spans = profile_spans(
        profile(
            {
                MAIN: [step(0, 0, 100)],
                DATA: [
                    event("PrefetchProduce", 10, 50),
                    event("Iterator::Root::Prefetch::Map", 12, 40),
                    event("MapAndBatchConsume", 55, 58),
                    event("Iterator::Root::TFRecord", 60, 70),
                ],
            }
        )
    )
    assert rows(spans, "pipeline") == [
        ("PrefetchProduce", DATA, 0, 10, 50),
        ("Iterator::Root::TFRecord", DATA, 0, 60, 70),
    ]


def test_other_holds_the_applications_own_annotations(profile):
    spans = profile_spans(
        profile(
            {
                MAIN: [
                    step(0, 0, 100),
                    event("augment", 10, 50),
                    event("augment_inner", 20, 30),
                    event("TFE_Py_FastPathExecute_C", 60, 70),
                    event("train_step", 70, 90, tf_function_call="eager"),
                    event("$app.py:12 main", 100, 400),
                    event("evaluate", 200, 300),
                ],
            }
        )
    )
    assert [(row[0], row[2]) for row in rows(spans, "other")] == [("augment", 0), ("evaluate", NO_STEP)]


def test_frequent_tiny_annotations_are_left_out(profile):
    tiny = [event("tiny", 10 + 2 * i, 11 + 2 * i) for i in range(200)]
    spans = profile_spans(profile({MAIN: [step(0, 0, 10_000), *tiny]}))
    assert rows(spans, "other") == []


def test_nested_step_markers_count_once(profile):
    threads = {
        MAIN: [
            event("epoch", 0, 1000, step_num=0),
            *(step(i, 100 + 100 * i, 190 + 100 * i) for i in range(4)),
            *(event("Profiled batch", 110 + 100 * i, 180 + 100 * i, step_num=i) for i in range(4)),
            event("eval", 2000, 2100, step_num=0),
        ]
    }
    found = profile(threads)
    assert [row[0] for row in rows(profile_spans(found), "step")] == ["train"] * 4 + ["eval"]
    assert step_numbers(profile_spans(found)) == [0, 1, 2, 3, 4]


def test_step_numbers_that_rise_are_kept(profile):
    assert step_numbers(profile_spans(profile({MAIN: [step(500, 0, 10), step(502, 20, 30)]}))) == [500, 502]
    assert step_numbers(profile_spans(profile({MAIN: [step(1 << 40, 0, 10), step(1 << 41, 20, 30)]}))) == [0, 1]


_NEXT, _WORK = "EagerLocalExecute: IteratorGetNext", "EagerLocalExecute: Step"


def _attempts(*names):
    """Steps of (number, names of what ran in it), one after the other."""
    events = []
    for place, (number, inside) in enumerate(names):
        events.append(step(number, 100 * place, 100 * place + 90))
        events += [event(name, 100 * place + 20 * i, 100 * place + 20 * i + 9) for i, name in enumerate(inside, 1)]
    return {MAIN: events}


def test_a_marker_that_met_the_end_of_the_data_is_no_step(profile):
    both, end = (_NEXT, _WORK), (_NEXT,)
    epochs = [*((i, both) for i in range(5)), (5, end), *((i, both) for i in range(5, 9)), (9, end)]
    found = profile(_attempts(*epochs))
    assert step_numbers(profile_spans(found)) == list(range(9))
    assert [row[3] for row in rows(profile_spans(found), "step")] == [100 * i for i in (0, 1, 2, 3, 4, 6, 7, 8, 9)]


@pytest.mark.parametrize(
    "markers",
    [
        [(i, (_NEXT,)) for i in (0, 1, 1, 2)],  # a trace without operations tells nothing
        [*((i, (_NEXT, _WORK)) for i in range(8)), (8, ())],  # took nothing from an iterator
        [(0, (_NEXT, _WORK)), (1, (_NEXT,)), *((i, (_NEXT, _WORK)) for i in range(2, 9))],  # its number is its own
    ],
)
def test_other_markers_without_operations_are_steps(profile, markers):
    assert len(step_numbers(profile_spans(profile(_attempts(*markers))))) == len(markers)


def test_without_steps_there_are_still_spans(profile):
    found = profile(
        {COMPUTE: [event("a:A", 0, 5)] * 3, MAIN: [event("evaluate", 0, 100), event("EagerLocalExecute: F", 10, 20)]}
    )
    assert found.lines[main_line(found)].id == MAIN
    spans = profile_spans(found)
    assert rows(spans, "step") == []
    assert [row[2:] for row in rows(spans, "compute")] == [(NO_STEP, 0, 5), (NO_STEP, 10, 20)]
    assert [row[0] for row in rows(spans, "other")] == ["evaluate"]


_names = st.sampled_from(
    [
        "next_batch",
        "allreduce",
        "checkpoint",
        "EagerLocalExecute: F",
        "EagerLocalExecute: SaveV2",
        "f:F",
        "mine",
        "x:RestoreV2",
    ]
)
_pieces = st.lists(st.tuples(_names, st.integers(0, 900), st.integers(0, 300)), max_size=25)


@settings(max_examples=examples(60))
@given(main=_pieces, other=_pieces, lengths=st.lists(st.integers(1, 200), max_size=5))
def test_no_instant_is_compute_and_something_else(tmp_path_factory, main, other, lengths):
    bounds = np.cumsum([0, *lengths]).tolist()
    steps = [step(i, begin, end) for i, (begin, end) in enumerate(pairwise(bounds))]
    threads = {
        MAIN: [*steps, *(event(n, s, s + d) for n, s, d in main)],
        COMPUTE: [event(n, s, s + d) for n, s, d in other],
    }
    lines = [
        Line(id=thread, name=CLASSES[thread], events=tuple(sorted(events, key=lambda e: (e.start_ns, -e.duration_ns))))
        for thread, events in threads.items()
        if events
    ]
    if not lines:
        return
    path = tmp_path_factory.mktemp("p") / "a.xplane.pb"
    path.write_bytes(writer.profile(lines))
    found = read_profile(path)
    spans = profile_spans(found)
    assert [end - begin for begin, end, _ in step_times(spans)] == lengths
    compute = np.zeros(2000, int)
    taken = np.zeros(2000, bool)
    for kind in ("input_wait", "collective", "checkpoint"):
        for *_, begin, end in rows(spans, kind):
            taken[begin:end] = True
    for _, _, number, begin, end in rows(spans, "compute"):
        compute[begin:end] += 1
        assert all(not begin < bound < end for bound in bounds)
        assert (number >= 0) == (begin < bounds[-1])
    assert compute.max(initial=0) <= 1
    assert not (compute.astype(bool) & taken).any()
    assert (spans.end_ns > spans.start_ns).all()


def _captured():
    return sorted(wall for wall in CAPTURES.glob("*/wall-*.json") if (wall.parent / "job.darshan").exists())


@pytest.mark.parametrize("wall", _captured() or [None], ids=lambda path: path and f"{path.parent.name}-{path.stem}")
def test_real_captures(wall):
    if wall is None:
        pytest.skip("no captures beside the checkout")
    recorded = json.loads(wall.read_text())
    (path,) = find_profiles(wall.parent / "profile" / f"rank{recorded['rank']}")
    profile = read_profile(path)
    spans = profile_spans(profile)
    steps = step_times(spans)
    count = recorded["steps"]
    assert step_numbers(spans) == list(range(count))
    assert all(following[0] >= before[1] for before, following in pairwise(steps))
    assert recorded["t0"] * 1e9 - 1e6 < steps[0][0] + START_NS
    assert steps[-1][1] + START_NS < recorded["t1"] * 1e9 + 1e6
    for begin, end, shares in steps:
        assert min(shares["input_wait"], shares["collective"], shares["compute"]) > 0
        assert sum(shares.values()) < end - begin
    assert len(rows(spans, "input_wait")) == len(rows(spans, "collective")) == count
    reads_itself = wall.parent.name not in ("imagenet", "cosmoflow", "cosmoflow_threads")
    assert {row[0] for row in rows(spans, "input_wait")} == {
        "next_batch" if reads_itself else "IteratorGetNextOp::DoCompute"
    }
    assert bool(rows(spans, "pipeline")) != reads_itself
    saves = 3 if recorded["rank"] == 0 and wall.parent.name in ("cosmictagger", "l2hmc") else 0
    assert len(rows(spans, "checkpoint")) == saves
    assert [row[0] for row in rows(spans, "other")] == ["dxt_anchor"] * 6
