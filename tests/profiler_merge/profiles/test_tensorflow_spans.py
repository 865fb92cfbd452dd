"""Spans of TensorFlow's profiles from small written profiles, rule by rule, and on the real captures."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.profiles.span_parts import NOT_FETCHED
from dxt_replay.profiler_merge.profiles.spans import main_line, profile_spans
from dxt_replay.profiler_merge.profiles.xplane import read_profile
from dxt_replay.traces.schema import NO_STEP, SPAN_KINDS, SPANS_SCHEMA, UNION_THREAD, table_from_columns
from tests import xplane_writer as writer
from tests.examples import examples
from tests.xplane_writer import START_NS, Event, Line

MAIN, COMPUTE, EIGEN, DATA, GET_NEXT, OTHER_DATA, POOL = 11, 22, 33, 44, 55, 66, 77

CLASSES = {
    MAIN: "python", COMPUTE: "tf_Compute/22", EIGEN: "tf_numa_-1_Eigen/33", DATA: "tf_data_iterator_resource/44",
    GET_NEXT: "tf_data_iterator_get_next/55", OTHER_DATA: "tf_data_iterator_resource/66",
    POOL: "tf_data_private_threadpool/77",
}  # fmt: skip
NEXT, ITERATOR = "EagerLocalExecute: IteratorGetNext", "IteratorGetNextOp::DoCompute"


def event(name, start, end, **stats):
    return Event(name=name, start_ns=start, duration_ns=end - start, stats=stats)


def step(number, start, end, name="train"):
    return event(name, start, end, step_num=number)


def profile(folder, threads):
    """A profile of {thread: [events]}; threads are the constants above."""
    lines = [
        Line(id=thread, name=CLASSES[thread], events=tuple(sorted(events, key=lambda e: (e.start_ns, -e.duration_ns))))
        for thread, events in threads.items()
    ]
    path = folder / "node1.xplane.pb"
    path.write_bytes(writer.profile(lines))
    return read_profile(path)


def rows(spans, kind):
    """(name, thread, step, start, end) of the spans of a kind, times from the profile's start."""
    chosen = np.flatnonzero(spans.kind == SPAN_KINDS.index(kind))
    columns = (spans.name, spans.thread, spans.step, spans.start_ns - START_NS, spans.end_ns - START_NS)
    return [tuple(column[row] for column in columns) for row in chosen]


def eigen(*marks):
    return [event(f"ThreadpoolListener::{kind}Region", at, at) for at, kind in marks]


REGIONS = eigen((10, "Start"), (15, "Stop"), (20, "Start"), (30, "Stop"), (35, "Stop"), (40, "Start"))
ONE = step(0, 0, 100)


def attempts(*names):
    """Steps of (number, names of what ran in it), one after the other."""
    events = []
    for place, (number, inside) in enumerate(names):
        events.append(step(number, 100 * place, 100 * place + 90))
        events += [event(name, 100 * place + 20 * i, 100 * place + 20 * i + 9) for i, name in enumerate(inside, 1)]
    return {MAIN: events}


BOTH, END = (NEXT, "EagerLocalExecute: Step"), (NEXT,)
CASES = {
    "a step in full": (
        {
            MAIN: [
                *(step(7, 100, 1000), event("next_batch", 100, 300), event(ITERATOR, 120, 280, id=1)),
                *(event(NEXT, 110, 310), event("EagerLocalExecute: __inference_grads_1", 400, 600)),
                *(event("allreduce", 700, 800), event("EagerLocalExecute: Cast", 750, 850)),
                *(event("checkpoint", 1000, 1500), event("EagerLocalExecute: SaveV2", 1100, 1600)),
                event("EagerLocalExecute: RestoreV2", 1700, 1800),
            ],
            COMPUTE: [event("a/conv:Conv2D", 550, 650), event("b:_Send", 250, 320)],
        },
        {
            "step": [("train", MAIN, 7, 100, 1000)],
            "input_wait": [(ITERATOR, MAIN, 7, 100, 300)],
            "collective": [("allreduce", MAIN, 7, 700, 800)],
            "checkpoint": [("checkpoint", MAIN, NO_STEP, 1000, 1600), ("restore", MAIN, NO_STEP, 1700, 1800)],
            "compute": [("compute", UNION_THREAD, 7, *each) for each in ((300, 320), (400, 650), (800, 850))],
        },
    ),
    "who reads in the training thread keeps the annotation as name": (
        {MAIN: [ONE, event("next_batch", 10, 60)]}, {"input_wait": [("next_batch", MAIN, 0, 10, 60)]},
    ),
    "Keras waits on a thread of its own": (
        {MAIN: [ONE], GET_NEXT: [event(ITERATOR, 10, 60)]}, {"input_wait": [(ITERATOR, GET_NEXT, 0, 10, 60)]},
    ),
    "an iterator inside the pipeline is no input wait": (
        {MAIN: [ONE], DATA: [event(ITERATOR, 10, 60)]}, {"input_wait": []},
    ),
    "a union over threads has no thread": (
        {MAIN: [ONE, event("allreduce", 10, 30)], COMPUTE: [event("x:HorovodAllreduce", 20, 50)]},
        {"collective": [("allreduce", UNION_THREAD, 0, 10, 50)]},
    ),
    **{
        f"{name} is a collective": (
            {MAIN: [ONE, event(name, 10, 30)]}, {"collective": [(name, MAIN, 0, 10, 30)], "compute": []},
        )
        for name in (
            *("dist/HorovodAllreduce_grads:HorovodAllreduce", "EagerLocalExecute: CollectiveReduceV2"),
            *("c:CollectiveReduceV3", "c:NcclAllReduce", "EagerLocalExecute: HorovodBroadcast"),
        )
    },
    "regions of Eigen count as compute": (
        {MAIN: [ONE], EIGEN: REGIONS, COMPUTE: REGIONS},
        {"compute": [("compute", UNION_THREAD, 0, 10, 15), ("compute", UNION_THREAD, 0, 20, 30)]},
    ),
    "compute is cut at the bounds of steps": (
        {MAIN: [step(3, 0, 100), step(4, 100, 200)], COMPUTE: [event("f:F", 50, 250)]},
        {"compute": [("compute", UNION_THREAD, *each) for each in ((3, 50, 100), (4, 100, 200), (-1, 200, 250))]},
    ),
    "the pipeline keeps the outermost event of each thread": (
        {
            MAIN: [ONE],
            DATA: [
                *(event("PrefetchProduce", 10, 50), event("Iterator::Root::Prefetch::Map", 12, 40)),
                *(event("MapAndBatchConsume", 55, 58), event("Iterator::Root::TFRecord", 60, 70)),
            ],
        },
        {"pipeline": [("PrefetchProduce", DATA, 0, 10, 50), ("Iterator::Root::TFRecord", DATA, 0, 60, 70)]},
    ),
    "other holds the application's own annotations": (
        {
            MAIN: [
                *(ONE, event("augment", 10, 50), event("augment_inner", 20, 30)),
                *(event("TFE_Py_FastPathExecute_C", 60, 70), event("train_step", 70, 90, tf_function_call="eager")),
                *(event("$app.py:12 main", 100, 400), event("evaluate", 200, 300), event("\udcff", 320, 330)),
            ]
        },
        {
            "other": [
                *(("augment", MAIN, 0, 10, 50), ("evaluate", MAIN, NO_STEP, 200, 300)),
                ("\\xff", MAIN, NO_STEP, 320, 330),
            ]
        },
    ),
    "frequent tiny annotations are left out": (
        {MAIN: [step(0, 0, 10_000), *(event("tiny", 10 + 2 * i, 11 + 2 * i) for i in range(200))]}, {"other": []},
    ),
    "nested markers of steps count once": (
        {
            MAIN: [
                *(event("epoch", 0, 1000, step_num=0), *(step(i, 100 + 100 * i, 190 + 100 * i) for i in range(4))),
                *(event("Profiled batch", 110 + 100 * i, 180 + 100 * i, step_num=i) for i in range(4)),
                event("eval", 2000, 2100, step_num=0),
            ]
        },
        {"numbers": [0, 1, 2, 3, 4], "names": ["train"] * 4 + ["eval"]},
    ),
    "numbers that rise are kept": ({MAIN: [step(500, 0, 10), step(502, 20, 30)]}, {"numbers": [500, 502]}),
    "numbers beyond 32 bits are not": ({MAIN: [step(1 << 40, 0, 10), step(1 << 41, 20, 30)]}, {"numbers": [0, 1]}),
    "a marker that met the end of the data is no step": (
        attempts(*((i, BOTH) for i in range(5)), (5, END), *((i, BOTH) for i in range(5, 9)), (9, END)),
        {"numbers": [*range(9)], "starts": [100 * i for i in (0, 1, 2, 3, 4, 6, 7, 8, 9)]},
    ),
    "a trace without operations tells nothing": (attempts(*((i, END) for i in (0, 1, 1, 2))), {"numbers": [*range(4)]}),
    "who took nothing from an iterator met no end": (
        attempts(*((i, BOTH) for i in range(8)), (8, ())), {"numbers": [*range(9)]},
    ),
    "nor did one whose number is its own": (
        attempts((0, BOTH), (1, END), *((i, BOTH) for i in range(2, 9))), {"numbers": [*range(9)]},
    ),
    "without steps there are still spans": (
        {COMPUTE: [event("a:A", 0, 5)] * 3, MAIN: [event("evaluate", 0, 100), event("EagerLocalExecute: F", 10, 20)]},
        {
            "step": [], "compute": [("compute", UNION_THREAD, -1, 0, 5), ("compute", UNION_THREAD, -1, 10, 20)],
            "other": [("evaluate", MAIN, -1, 0, 100)],
        },
    ),
}  # fmt: skip
"""Events by thread, and the spans of a kind as of `rows`, or a column of the steps."""


@pytest.mark.parametrize("name", CASES)
def test_spans_of_events(name, tmp_path):
    threads, expected = CASES[name]
    made = profile(tmp_path, threads)
    assert made.lines[main_line(made)].id == MAIN
    spans = profile_spans(made)
    steps = spans[spans.kind == SPAN_KINDS.index("step")]
    columns = {"numbers": steps.step, "names": steps.name, "starts": steps.start_ns - START_NS}
    for what, wanted in expected.items():
        assert (columns[what].tolist() if what in columns else rows(spans, what)) == wanted
    assert spans.start_ns.tolist() == sorted(spans.start_ns.tolist())
    same = {name: spans[name] for name in ("thread", "kind", "name", "step", "start_ns", "end_ns")}
    assert table_from_columns({"rank": 0, **same}, SPANS_SCHEMA).num_rows == len(spans)


def test_gpu_streams_count_as_compute(tmp_path):
    stream = Line(
        id=14, name="Stream #14(Compute)", events=(event("gemm", 10, 30), event("ncclKernel_AllReduce_f32", 30, 40))
    )
    planes = [
        writer.plane("/host:CPU", [Line(id=MAIN, name="python", events=(ONE,))]),
        writer.plane("/device:GPU:0", [stream]),
        writer.plane("Task Environment", stats={"profile_start_time": START_NS}),
    ]
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(writer.space(planes))
    spans = profile_spans(read_profile(path))
    assert [row[3:] for row in rows(spans, "compute")] == [(10, 30)]
    assert [row[3:] for row in rows(spans, "collective")] == [(30, 40)]


_names = st.sampled_from(
    ["next_batch", "allreduce", "checkpoint", "EagerLocalExecute: F", "EagerLocalExecute: SaveV2", "f:F", "mine",
     "x:RestoreV2"]
)  # fmt: skip
_pieces = st.lists(st.tuples(_names, st.integers(0, 900), st.integers(0, 300)), max_size=25)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(main=_pieces, other=_pieces, lengths=st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_no_instant_is_compute_and_something_else(tmp_path, main, other, lengths):
    bounds = np.cumsum([0, *lengths]).tolist()
    steps = [step(i, begin, end) for i, (begin, end) in enumerate(pairwise(bounds))]
    own, others = ([event(n, s, s + d) for n, s, d in pieces] for pieces in (main, other))
    spans = profile_spans(profile(tmp_path, {MAIN: [*steps, *own], **({COMPUTE: others} if others else {})}))
    assert [end - begin for *_, begin, end in rows(spans, "step")] == lengths
    compute, taken = np.zeros(2000, int), np.zeros(2000, bool)
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


MANY = {GET_NEXT: [event(ITERATOR, 100, 500), event("MapAndBatchConsume", 490, 491, element_id=9)],
        DATA: [event("MapAndBatchProduce", 110 + 20 * n, 120 + 20 * n, element_id=9) for n in range(3)]}  # fmt: skip
BUFFERS = {
    GET_NEXT: [
        *(event(ITERATOR, 100, 400), event("PrefetchConsume", 390, 391, element_id=70)),
        *(event(ITERATOR, 1100, 1200), event("PrefetchConsume", 1190, 1191, element_id=71)),
    ],
    DATA: [
        *(event("PrefetchProduce", 110, 380, element_id=70), event("ParallelMapConsume", 300, 301, element_id=5)),
        *(event("PrefetchProduce", 400, 800, element_id=71), event("ParallelMapConsume", 700, 701, element_id=6)),
        event("PrefetchProduce", 900, 950, element_id=72),
    ],
    OTHER_DATA: [
        *(event("ParallelMapProduce", 120, 200, element_id=5), event("FunctionRun", 190, 195, id=900)),
        *(event("ParallelMapProduce", 210, 230, element_id=6), event("FunctionRun", 225, 228, id=901)),
    ],
    POOL: [event("ExecutorState::Process", 200, 290, id=900), event("ExecutorState::Process", 300, 650, id=901)],
}  # fmt: skip
USED = {
    ("PrefetchProduce", 110): 400, ("PrefetchProduce", 400): 1200,
    ("PrefetchProduce", 900): None,  # made, and never fetched
    ("ParallelMapProduce", 120): 400, ("ParallelMapProduce", 210): 1200,
    ("ExecutorState::Process", 200): 400, ("ExecutorState::Process", 300): 1200,
}  # fmt: skip


@pytest.mark.parametrize(
    ("threads", "used"), [(BUFFERS, USED), (MANY, {("MapAndBatchProduce", at): 500 for at in (110, 130, 150)})]
)
def test_an_element_goes_through_every_buffer_to_the_fetch_that_used_it(tmp_path, threads, used):
    spans = profile_spans(profile(tmp_path, {MAIN: [step(0, 0, 1000), step(1, 1000, 2000)], **threads}))
    mine = spans[spans.kind == SPAN_KINDS.index("pipeline")]
    found = zip(mine.name, (mine.start_ns - START_NS).tolist(), mine.fetched_ns.tolist(), strict=True)
    assert {(name, at): None if end == NOT_FETCHED else end - START_NS for name, at, end in found} == used
