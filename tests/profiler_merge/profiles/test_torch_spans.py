"""Spans of PyTorch's profiles from small written files, rule by rule, and on the real captures."""

import gzip
import json

import numpy as np
import pytest

from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.profiles.kineto import read_profile
from dxt_replay.profiler_merge.profiles.spans import main_line, profile_spans
from dxt_replay.traces.schema import NO_STEP, SPAN_KINDS, SPANS_SCHEMA, table_from_columns
from tests import kineto_writer as writer
from tests.kineto_writer import PID, START_NS, event, kernel, launch, mark
from tests.places import SHARED, recordings

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
UPDATE = "Optimizer.step#SGD.step"


def note(name, start, end, **members):
    return event(name, start, end, cat="user_annotation", **members)


@pytest.fixture
def spans(tmp_path):
    """The spans of a profile of these events."""

    def spans(*events):
        profile = read_profile([writer.write(tmp_path / "t.json", events)])
        return profile_spans(profile)

    return spans


def rows(spans, kind):
    """(start, end, name, step) of the spans of a kind; times from the start of the profile."""
    mine = spans.kind == SPAN_KINDS.index(kind)
    columns = (spans.start_ns[mine] - START_NS, spans.end_ns[mine] - START_NS, spans.name[mine], spans.step[mine])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_step_on_the_cpu_in_full(spans):
    found = spans(
        mark(4, 0, 1000),
        note(NEXT, 0, 300),
        event("aten::stack", 100, 200),
        event("aten::linear", 300, 400),
        event("aten::addmm", 320, 380),
        event("autograd::engine::evaluate_function", 380, 500, tid=PID + 1),
        note("allreduce", 500, 600),
        note(UPDATE, 600, 700),
        note("checkpoint", 700, 900),
        event("aten::clone", 750, 800),
    )
    assert rows(found, "step") == [(0, 1000, "ProfilerStep", 4)]
    assert rows(found, "input_wait") == [(0, 300, NEXT, 4)]
    assert rows(found, "compute") == [(300, 500, "compute", 4), (600, 700, "compute", 4)]
    assert rows(found, "collective") == [(500, 600, "allreduce", 4)]
    assert rows(found, "checkpoint") == [(700, 900, "checkpoint", 4)]
    assert rows(found, "other") == []


def test_spans_fit_the_contract(spans):
    found = spans(mark(0, 0, 1000), event("aten::add", 0, 10))
    table = table_from_columns(
        {
            "rank": np.zeros(len(found), np.int32), "thread": found.thread, "kind": found.kind, "name": found.name,
            "step": found.step, "start_ns": found.start_ns, "end_ns": found.end_ns,
        },
        SPANS_SCHEMA,
    )  # fmt: skip
    assert table.num_rows == 2


def test_the_last_mark_without_work_is_not_a_step(spans):
    steps = [mark(0, 0, 1000), event("aten::add", 10, 900), mark(1, 1000, 2000)]
    assert [row[3] for row in rows(spans(*steps, event("aten::add", 1100, 1200)), "step")] == [0, 1]
    assert [row[3] for row in rows(spans(*steps, writer.anchor(3, 1100)), "step")] == [0]
    # Asking for a batch after the last one is no work, although operators make the new epoch's order.
    asking = [note(NEXT, 1100, 1300), event("aten::randperm", 1150, 1200)]
    assert [row[3] for row in rows(spans(*steps, *asking), "step")] == [0]


def test_the_mark_that_was_open_when_the_profiler_was_stopped_is_not_a_step(spans):
    """As `recording` makes it: anchors of the begin in step 0, those of the end after a checkpoint and a validation."""
    steps = [mark(i, 1000 * i, 1000 * i + 990) for i in range(3)]
    work = [event("aten::linear", 1000 * i + 300, 1000 * i + 700) for i in range(3)]
    ends = [writer.anchor(i, 10 + i) for i in range(3)], [writer.anchor(3 + i, 2900 + i) for i in range(3)]
    found = spans(*steps, *work, *ends[0], *ends[1])
    assert [row[3] for row in rows(found, "step")] == [0, 1]
    assert [row[:2] for row in rows(found, "compute")] == [(300, 700), (1300, 1700), (2300, 2700)]
    assert [row[3] for row in rows(spans(*steps, *work, *ends[0]), "step")] == [0, 1, 2]
    each = [writer.anchor(i, 1000 * i + 10) for i in range(3)]  # an anchor in each step is the program's own
    assert [row[3] for row in rows(spans(*steps, *work, *each), "step")] == [0, 1, 2]


def test_a_mark_without_work_amid_others_is_a_step(spans):
    found = spans(mark(0, 0, 10), mark(1, 10, 20), event("aten::add", 12, 15))
    assert [row[3] for row in rows(found, "step")] == [0, 1]


def test_numbers_that_do_not_rise_are_replaced(spans):
    found = spans(*(mark(n, 100 * i, 100 * i + 90) for i, n in enumerate((5, 6, 5))), event("aten::add", 210, 220))
    assert [row[3] for row in rows(found, "step")] == [0, 1, 2]


def test_without_marks_a_step_is_from_batch_to_batch(spans):
    loop = [
        part
        for i in range(3)
        for part in (note(NEXT, 100 * i, 100 * i + 20), event("aten::add", 100 * i + 20, 100 * i + 60))
    ]
    assert [row[:2] for row in rows(spans(*loop), "step")] == [(0, 100), (100, 200), (200, 260)]
    # Where the optimiser ran only in some of them, the others trained nothing.
    found = spans(*loop, note(UPDATE, 60, 70), note(UPDATE, 260, 270))
    assert [row[:2] for row in rows(found, "step")] == [(0, 100), (200, 270)]


def test_without_batches_a_step_ends_with_the_optimiser(spans):
    found = spans(event("aten::add", 0, 50), note(UPDATE, 50, 60), event("aten::add", 60, 90), note(UPDATE, 90, 120))
    assert [(*row[:2], row[3]) for row in rows(found, "step")] == [(0, 60, 0), (60, 120, 1)]


def test_gpu_work_belongs_to_the_step_that_launched_it(spans):
    found = spans(
        mark(0, 0, 100), launch(10, 12, 1), launch(14, 16, 2),
        mark(1, 100, 200), launch(110, 112, 3),
        kernel("gemm", 20, 150, 1), kernel("relu", 150, 180, 2), kernel("gemm", 180, 300, 3),
        kernel("early", 0, 5, 99),
    )  # fmt: skip
    gpu = [row for row in rows(found, "compute") if row[2] == "gpu compute"]
    assert gpu == [(0, 5, "gpu compute", 0), (20, 180, "gpu compute", 0), (180, 300, "gpu compute", 1)]


def test_both_figures_of_a_wait_that_the_gpu_hides_are_kept(spans):
    found = spans(
        mark(0, 0, 200), launch(0, 2, 1), kernel("gemm", 5, 60, 1), note(NEXT, 10, 100), event("aten::add", 100, 110)
    )
    assert rows(found, "input_wait") == [(60, 100, NEXT, 0)]
    assert rows(found, "other") == [(10, 60, NEXT, 0)]


def test_a_collective_on_the_gpu_is_when_nothing_else_ran_there(spans):
    found = spans(
        mark(0, 0, 500), launch(0, 2, 1), launch(2, 4, 2), note("nccl:all_reduce", 2, 4),
        kernel("gemm", 100, 200, 1), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 150, 300, 2),
    )  # fmt: skip
    assert [row[:2] for row in rows(found, "collective")] == [(200, 300)]
    assert [row[:2] for row in rows(found, "compute")] == [(100, 200)]


def test_where_a_gpu_works_operators_of_the_cpu_are_no_compute(spans):
    found = spans(mark(0, 0, 100), launch(0, 2, 1), kernel("k", 2, 4, 1), event("aten::item", 40, 95))
    assert rows(found, "compute") == [(2, 4, "gpu compute", 0)]
    launched = event("cudaLaunchKernel", 41, 42, cat="cuda_runtime", correlation=1)  # a profile without its kernels
    assert rows(spans(mark(0, 0, 100), event("aten::mm", 40, 95), launched), "compute") == []


def test_each_gpu_of_a_process_has_its_own_compute(spans):
    found = spans(
        mark(0, 0, 100), kernel("a", 10, 30, 1), event("b", 20, 40, cat="kernel", pid=0, tid=9),
        event("c", 35, 60, cat="kernel", pid=1, tid=7), note(NEXT, 55, 90),
    )  # fmt: skip
    assert rows(found, "compute") == [(10, 40, "gpu compute", 0), (35, 60, "gpu compute", 0)]
    assert found.thread[found.kind == SPAN_KINDS.index("compute")].tolist() == [0, 1]
    assert rows(found, "input_wait") == [(60, 90, NEXT, 0)]


def test_gloo_on_its_own_threads_is_a_collective(spans):
    found = spans(mark(0, 0, 100), event("aten::mm", 0, 60), note("gloo:all_reduce", 40, 90, tid=PID + 5))
    assert [row[:2] for row in rows(found, "collective")] == [(40, 90)]
    assert [row[:2] for row in rows(found, "compute")] == [(0, 40)]


def passes(*trained, marks=False):
    """A loop over batches of 100 ns, each with an operator; in a trained one with a backward pass and an update. The
    request at the end of a pass (None) meets the end of the data."""
    for i, train in enumerate(trained):
        yield note(NEXT, 100 * i, 100 * i + 20)
        if train is not None:
            yield event("aten::mm", 100 * i + 20, 100 * i + 60)
        if train:
            yield event("autograd::engine::evaluate_function: MmBackward0", 100 * i + 60, 100 * i + 70, tid=PID + 1)
            yield note(UPDATE, 100 * i + 70, 100 * i + 80)
        if marks:
            yield mark(i, 100 * i, 100 * i + 100)


def test_a_pass_without_updates_is_an_evaluation_and_no_steps(spans):
    found = spans(*passes(1, 1, None, 0, 0, 0, None, 1, 1, None))
    assert [row[:2] for row in rows(found, "step")] == [(0, 100), (100, 200), (700, 800), (800, 900)]
    assert rows(found, "other") == [(300, 620, "evaluation", NO_STEP)]
    told = spans(*passes(1, 1, None, 0, 0, None, 1, 1, None), note("validate", 290, 530))
    assert rows(told, "other") == [(290, 530, "validate", NO_STEP)]


def test_marks_of_an_evaluation_are_no_steps(spans):
    found = spans(*passes(1, 1, 0, 0, 0, 1, 1, marks=True))
    assert [(*row[:2], row[3]) for row in rows(found, "step")] == [
        (0, 100, 0), (100, 200, 1), (500, 600, 2), (600, 700, 3)
    ]  # fmt: skip
    assert (300, 420, "evaluation", NO_STEP) in rows(found, "other")
    # The profile goes on after the last step, and holds a validation there.
    after = [mark(2, 200, 600), *passes(1, 1, None, 0, 0, None)]
    assert [row[3] for row in rows(spans(mark(0, 0, 100), mark(1, 100, 200), *after), "step")] == [0, 1]


def test_batches_whose_gradients_accumulate_are_steps(spans):
    loop = list(passes(1, 1, 1, 1))
    updates = [each for each in loop if each["name"] == UPDATE]
    found = spans(*(each for each in loop if each not in (updates[0], updates[2])))
    assert [row[:2] for row in rows(found, "step")] == [(0, 100), (100, 200), (200, 300), (300, 380)]
    assert rows(found, "other") == []


def test_without_updates_or_with_several_loaders_nothing_is_called_an_evaluation(spans):
    untold = [each for each in passes(1, 1, None, 0, 0, None) if each["name"] != UPDATE]
    assert rows(spans(*untold), "other") == []
    three = [note(NEXT, 30 * i, 30 * i + 20) for i in range(9)]
    train = [event("XBackward", 90 * i + 82, 90 * i + 84) for i in range(3)]
    train += [note(UPDATE, 90 * i + 84, 90 * i + 88) for i in range(3)]
    assert rows(spans(*three, *train), "other") == []


def test_saving_and_loading_are_known_from_python_functions(spans):
    found = spans(
        mark(0, 0, 100), event("aten::add", 0, 5),
        event("torch/serialization.py(943): save", 10, 40, cat="python_function"),
        event("torch/serialization.py(1300): load", 50, 70, cat="python_function"),
        event("torch/utils/checkpoint.py(12): checkpoint", 70, 90, cat="python_function"),
    )  # fmt: skip
    assert [row[:3] for row in rows(found, "checkpoint")] == [
        (10, 40, "torch/serialization.py(943): save"), (50, 70, "restore"),
    ]  # fmt: skip


def test_the_applications_annotations_are_kept_and_operators_are_not(spans):
    found = spans(
        mark(0, 0, 100), note("evaluate", 10, 90), note("inner", 20, 30), event("aten::add", 20, 30),
        note("Optimizer.zero_grad#SGD.zero_grad", 91, 92), note("DistributedDataParallel.forward", 93, 94),
    )  # fmt: skip
    assert [row[2] for row in rows(found, "other")] == ["evaluate"]


def test_the_categories_of_2021(spans):
    found = spans(
        mark(0, 0, 100, cat="Operator"), event("aten::mm", 10, 40, cat="Operator"),
        event(NEXT, 0, 10, cat="Operator"), event("cudaLaunchKernel", 11, 12, cat="Runtime", correlation=5),
        kernel("gemm", 60, 80, 5, cat="Kernel"), event("my phase", 85, 99, cat="Operator"),
    )  # fmt: skip
    assert [row[3] for row in rows(found, "step")] == [0]
    assert [row[:2] for row in rows(found, "input_wait")] == [(0, 10)]
    assert [row[:3] for row in rows(found, "compute")] == [(60, 80, "gpu compute")]
    assert [row[2] for row in rows(found, "other")] == ["my phase"]


def test_a_profile_without_a_loop_still_has_compute(spans):
    found = spans(event("aten::mm", 10, 40))
    assert rows(found, "compute") == [(10, 40, "compute", NO_STEP)]


def test_the_main_line_has_the_marks(tmp_path):
    busy = [event("aten::mm", 10 * i, 10 * i + 9, tid=PID + 1) for i in range(20)]
    profile = read_profile([writer.write(tmp_path / "t.json", [*busy, mark(0, 0, 300)])])
    assert profile.lines[main_line(profile)].id == PID


@pytest.mark.parametrize(
    "wall", recordings("captures/torch_*/**/wall-*.json"), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_real_captures_have_every_step_and_its_time(wall):
    recorded = json.loads(wall.read_text())
    (path,) = find_profiles(wall.parent / "profile" / f"rank{recorded['rank']}")
    found = profile_spans(read_profile([path]))
    steps = found.kind == SPAN_KINDS.index("step")
    assert found.step[steps].tolist() == list(range(recorded["steps"]))
    total_ns = found.end_ns[steps].max() - found.start_ns[steps].min()
    assert total_ns == pytest.approx((recorded["t1"] - recorded["t0"]) * 1e9, rel=0.01)


GPU_FILES = [
    "resnet50_num_workers_0.worker0.1623143089861", "nccl_data", "trace_diff_control", "resnet_act_checkpoint",
    "mi250_minitoy_train_ROCm6_2_kineto",
]  # fmt: skip
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")


@pytest.mark.skipif(not (SHARED / "other-sources/kineto").is_dir(), reason="no recorded files beside this checkout")
@pytest.mark.parametrize("name", GPU_FILES)
def test_gpu_times_of_real_files_are_those_of_their_events(name):
    """Compute, what only NCCL did, and the loader's waits, against unions taken of the JSON itself."""
    (path,) = (SHARED / "other-sources/kineto").glob(f"{name}*.json.gz")
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"] if e["ph"] == "X"]
    on_gpu = [e for e in events if str(e.get("cat")).lower() in ON_GPU]
    everything = covered_us(on_gpu)
    work = covered_us([e for e in on_gpu if not e["name"].startswith("nccl")])
    waits = covered_us([e for e in events if "__next__" in e["name"] and e.get("cat") != "gpu_user_annotation"])
    spans = profile_spans(read_profile([path]))
    kinds = np.array(SPAN_KINDS)[spans.kind]
    lasts_us = (spans.end_ns - spans.start_ns) / 1000
    asked = np.array(["__next__" in name for name in spans.name])
    assert lasts_us[(kinds == "compute") & (spans.name == "gpu compute")].sum() == pytest.approx(work, rel=1e-4)
    assert lasts_us[kinds == "collective"].sum() == pytest.approx(everything - work, rel=1e-4, abs=1)
    starves, hidden = lasts_us[kinds == "input_wait"].sum(), lasts_us[(kinds == "other") & asked].sum()
    assert starves + hidden == pytest.approx(waits, rel=1e-4, abs=1)


def covered_us(events):
    """How much time lies in at least one event."""
    total, reached = 0.0, float("-inf")
    for begin, lasts in sorted((e["ts"], e.get("dur", 0)) for e in events):
        if begin + lasts > reached:
            total += begin + lasts - max(begin, reached)
            reached = begin + lasts
    return total
