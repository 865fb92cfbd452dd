"""Spans of PyTorch's profiles from small written files, rule by rule, and on the real captures."""

import gzip
import json

import numpy as np
import pytest

from dxt_replay.profiler_merge.profiles.kineto import read_profile
from dxt_replay.profiler_merge.profiles.spans import main_line, profile_spans
from dxt_replay.traces.schema import NO_STEP, SPAN_KINDS
from tests import kineto_writer as writer
from tests.kineto_writer import PID, START_NS, event, kernel, launch, mark
from tests.places import recordings

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
UPDATE = "Optimizer.step#SGD.step"


def note(name, start, end, **members):
    return event(name, start, end, cat="user_annotation", **members)


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


STEPS = [mark(i, 1000 * i, 1000 * i + 990) for i in range(3)]
WORK = [event("aten::linear", 1000 * i + 300, 1000 * i + 700) for i in range(3)]
BEGIN, END = ([writer.anchor(i + 3 * late, 10 + i + 2890 * late) for i in range(3)] for late in (0, 1))
TWO = [mark(0, 0, 1000), event("aten::add", 10, 900), mark(1, 1000, 2000)]
LOOP = [
    part
    for i in range(3)
    for part in (note(NEXT, 100 * i, 100 * i + 20), event("aten::add", 100 * i + 20, 100 * i + 60))
]
ACCUMULATED = [*passes(1, 1, 1, 1)]
ACCUMULATED = [each for i, each in enumerate(ACCUMULATED) if each["name"] != UPDATE or i in (7, len(ACCUMULATED) - 1)]
LOADERS = [
    *(note(NEXT, 30 * i, 30 * i + 20) for i in range(9)),
    *(event("XBackward", 90 * i + 82, 90 * i + 84) for i in range(3)),
    *(note(UPDATE, 90 * i + 84, 90 * i + 88) for i in range(3)),
]


def numbered(*steps):
    """(begin, end, step) of steps of 100 ns, by the hundreds in which they begin."""
    return [(100 * at, 100 * at + 100, number) for number, at in enumerate(steps)]


CASES = {
    "a step on the CPU in full": (
        [
            *(mark(4, 0, 1000), note(NEXT, 0, 300), event("aten::stack", 100, 200), event("aten::linear", 300, 400)),
            *(event("aten::addmm", 320, 380), event("autograd::engine::evaluate_function", 380, 500, tid=PID + 1)),
            *(note("allreduce", 500, 600), note(UPDATE, 600, 700), note("checkpoint", 700, 900)),
            event("aten::clone", 750, 800),
        ],
        {
            "step": [(0, 1000, 4)], "input_wait": [(0, 300, 4)], "compute": [(300, 500, 4), (600, 700, 4)],
            "collective": [(500, 600, 4)], "checkpoint": [(700, 900, 4)], "other": [],
        },
    ),
    "the last mark with work is a step": ([*TWO, event("aten::add", 1100, 1200)], {"step": [0, 1]}),
    "the last mark without work is none": ([*TWO, writer.anchor(3, 1100)], {"step": [0]}),
    # Operators make the new epoch's order.
    "to ask for a batch after the last one is no work": (
        [*TWO, note(NEXT, 1100, 1300), event("aten::randperm", 1150, 1200)], {"step": [0]},
    ),
    # As `recording` makes it: anchors of the begin in step 0, those of the end after a checkpoint and a validation.
    "a mark that was open when the profiler was stopped is no step": (
        [*STEPS, *WORK, *BEGIN, *END],
        {"step": [0, 1], "compute": [(300, 700, 0), (1300, 1700, 1), (2300, 2700, NO_STEP)]},
    ),
    "without anchors of the end it is one": ([*STEPS, *WORK, *BEGIN], {"step": [0, 1, 2]}),
    "an anchor in each step is the program's own": (
        [*STEPS, *WORK, *(writer.anchor(i, 1000 * i + 10) for i in range(3))], {"step": [0, 1, 2]},
    ),
    "a mark without work amid others is a step": (
        [mark(0, 0, 10), mark(1, 10, 20), event("aten::add", 12, 15)], {"step": [0, 1]},
    ),
    "numbers that do not rise are replaced": (
        [*(mark(n, 100 * i, 100 * i + 90) for i, n in enumerate((5, 6, 5))), event("aten::add", 210, 220)],
        {"step": [0, 1, 2]},
    ),
    "without marks a step is from batch to batch": (LOOP, {"step": [(0, 100, 0), (100, 200, 1), (200, 260, 2)]}),
    "where the optimiser ran only in some of them, the others trained nothing": (
        [*LOOP, note(UPDATE, 60, 70), note(UPDATE, 260, 270)], {"step": [(0, 100, 0), (200, 270, 1)]},
    ),
    "without batches a step ends with the optimiser": (
        [event("aten::add", 0, 50), note(UPDATE, 50, 60), event("aten::add", 60, 90), note(UPDATE, 90, 120)],
        {"step": [(0, 60, 0), (60, 120, 1)]},
    ),
    "GPU work belongs to the step that launched it": (
        [
            *(mark(0, 0, 100), launch(10, 12, 1), launch(14, 16, 2), mark(1, 100, 200), launch(110, 112, 3)),
            *(kernel("gemm", 20, 150, 1), kernel("relu", 150, 180, 2), kernel("gemm", 180, 300, 3)),
            kernel("early", 0, 5, 99),
        ],
        {"compute": [(0, 5, 0), (20, 180, 0), (180, 300, 1)]},
    ),
    "both figures of a wait that the GPU hides are kept": (
        [
            *(mark(0, 0, 200), launch(0, 2, 1), kernel("gemm", 5, 60, 1), note(NEXT, 10, 100)),
            event("aten::add", 100, 110),
        ],
        {"input_wait": [(60, 100, 0)], "other": [(10, 60, NEXT)]},
    ),
    "a collective on the GPU is when nothing else ran there": (
        [
            *(mark(0, 0, 500), launch(0, 2, 1), launch(2, 4, 2), note("nccl:all_reduce", 2, 4)),
            *(kernel("gemm", 100, 200, 1), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 150, 300, 2)),
        ],
        {"collective": [(200, 300, 0)], "compute": [(100, 200, 0)]},
    ),
    "where a GPU works operators of the CPU are no compute": (
        [mark(0, 0, 100), launch(0, 2, 1), kernel("k", 2, 4, 1), event("aten::item", 40, 95)],
        {"compute": [(2, 4, 0)]},
    ),
    "nor in a profile without its kernels": (
        [
            *(mark(0, 0, 100), event("aten::mm", 40, 95)),
            event("cudaLaunchKernel", 41, 42, cat="cuda_runtime", correlation=1),
        ],
        {"compute": []},
    ),
    "each GPU of a process has its own compute": (
        [
            *(mark(0, 0, 100), kernel("a", 10, 30, 1), event("b", 20, 40, cat="kernel", pid=0, tid=9)),
            *(event("c", 35, 60, cat="kernel", pid=1, tid=7), note(NEXT, 55, 90)),
        ],
        {"compute": [(10, 40, 0), (35, 60, 0)], "input_wait": [(60, 90, 0)], "threads of compute": [0, 1]},
    ),
    "gloo on its own threads is a collective": (
        [mark(0, 0, 100), event("aten::mm", 0, 60), note("gloo:all_reduce", 40, 90, tid=PID + 5)],
        {"collective": [(40, 90, 0)], "compute": [(0, 40, 0)]},
    ),
    "a pass without updates is an evaluation and no steps": (
        passes(1, 1, None, 0, 0, 0, None, 1, 1, None),
        {"step": numbered(0, 1, 7, 8), "other": [(300, 620, "evaluation")]},
    ),
    "a program that names it is believed": (
        [*passes(1, 1, None, 0, 0, None, 1, 1, None), note("validate", 290, 530)], {"other": [(290, 530, "validate")]},
    ),
    "marks of an evaluation are no steps": (
        passes(1, 1, 0, 0, 0, 1, 1, marks=True), {"step": numbered(0, 1, 5, 6), "evaluation": [(300, 420, NO_STEP)]},
    ),
    "a validation after the last step is none": (
        [mark(0, 0, 100), mark(1, 100, 200), mark(2, 200, 600), *passes(1, 1, None, 0, 0, None)], {"step": [0, 1]},
    ),
    "batches whose gradients accumulate are steps": (
        ACCUMULATED, {"step": [(0, 100, 0), (100, 200, 1), (200, 300, 2), (300, 380, 3)], "other": []},
    ),
    "without updates nothing is called an evaluation": (
        [each for each in passes(1, 1, None, 0, 0, None) if each["name"] != UPDATE], {"other": []},
    ),
    "nor with several loaders": (LOADERS, {"other": []}),
    "saving and loading are known from Python functions": (
        [
            *(mark(0, 0, 100), event("aten::add", 0, 5)),
            event("torch/serialization.py(943): save", 10, 40, cat="python_function"),
            event("torch/serialization.py(1300): load", 50, 70, cat="python_function"),
            event("torch/utils/checkpoint.py(12): checkpoint", 70, 90, cat="python_function"),
        ],
        {"checkpoint": [(10, 40, 0), (50, 70, 0)], "restore": [(50, 70, 0)]},
    ),
    "the application's annotations are kept and operators are not": (
        [
            *(mark(0, 0, 100), note("evaluate", 10, 90), note("inner", 20, 30), event("aten::add", 20, 30)),
            *(note("Optimizer.zero_grad#SGD.zero_grad", 91, 92), note("DistributedDataParallel.forward", 93, 94)),
        ],
        {"other": [(10, 90, "evaluate")]},
    ),
    "the categories of 2021": (
        [
            *(mark(0, 0, 100, cat="Operator"), event("aten::mm", 10, 40, cat="Operator")),
            *(event(NEXT, 0, 10, cat="Operator"), event("cudaLaunchKernel", 11, 12, cat="Runtime", correlation=5)),
            *(kernel("gemm", 60, 80, 5, cat="Kernel"), event("my phase", 85, 99, cat="Operator")),
        ],
        {
            "step": [(0, 100, 0)], "input_wait": [(0, 10, 0)], "gpu compute": [(60, 80, 0)],
            "other": [(85, 99, "my phase")],
        },
    ),
    "a profile without a loop still has compute": ([event("aten::mm", 10, 40)], {"compute": [(10, 40, NO_STEP)]}),
}  # fmt: skip
"""Events, and the spans of a kind or name: begin, end, and step or (of `other`) name; or the steps' numbers alone."""


@pytest.mark.parametrize("name", CASES)
def test_spans_of_events(name, tmp_path):
    events, expected = CASES[name]
    spans = profile_spans(read_profile([writer.write(tmp_path / "t.json", [*events])]))
    for what, wanted in expected.items():
        mine = spans[(np.array(SPAN_KINDS)[spans.kind] == what) | (spans.name == what)]
        found = zip(mine.start_ns - START_NS, mine.end_ns - START_NS, mine.step, mine.name, strict=True)
        found = [(begin, end, text if what == "other" else step) for begin, end, step, text in found]
        if what.startswith("threads of "):
            found = spans.thread[spans.kind == SPAN_KINDS.index("compute")].tolist()
        assert (mine.step.tolist() if what == "step" and wanted and isinstance(wanted[0], int) else found) == wanted


def test_the_main_line_has_the_marks(tmp_path):
    busy = [event("aten::mm", 10 * i, 10 * i + 9, tid=PID + 1) for i in range(20)]
    profile = read_profile([writer.write(tmp_path / "t.json", [*busy, mark(0, 0, 300)])])
    assert profile.lines[main_line(profile)].id == PID


ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
OF_PROFILER = "PyTorch Profiler"


@pytest.mark.parametrize("path", recordings("other-sources/kineto/**/*.json.gz"), ids=lambda path: path.name[:40])
def test_real_files_are_read_as_the_standard_library_reads_them(path):
    """Events; and compute, what only NCCL did, and the loader's waits, against unions taken of the JSON itself."""
    data = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    events, profile = [each for each in data["traceEvents"] if each.get("ph") == "X"], read_profile([path])
    wanted = [each["name"].partition("#")[0] if each["name"].startswith("ProfilerStep#") else each["name"]
              for each in events if each.get("cat") not in ("Trace", "python_function")]  # fmt: skip
    found = [profile.names[row] for row in profile.name]
    assert sorted(n for n in found if OF_PROFILER not in n) == sorted(n for n in wanted if OF_PROFILER not in n)
    first_ns = data.get("baseTimeNanoseconds", 0) + min(float(e["ts"]) for e in events if e.get("ts")) * 1000
    assert abs(profile.epoch_start_ns - first_ns) < 60e9
    assert 2021 <= np.datetime64(profile.epoch_start_ns, "ns").astype("datetime64[Y]").astype(int) + 1970 <= 2026
    assert profile.warnings == ()
    if not (on_gpu := [e for e in events if str(e.get("cat")).lower() in ON_GPU]):
        return
    everything = covered_us(on_gpu)
    work = covered_us([e for e in on_gpu if not e["name"].startswith("nccl")])
    waits = covered_us([e for e in events if "__next__" in e["name"] and e.get("cat") != "gpu_user_annotation"])
    spans = profile_spans(profile)
    kinds = np.array(SPAN_KINDS)[spans.kind]
    lasts_us = (spans.end_ns - spans.start_ns) / 1000
    asked = np.array(["__next__" in name for name in spans.name])
    assert lasts_us[(kinds == "compute") & (spans.name == "gpu compute")].sum() == pytest.approx(
        work, rel=1e-4, abs=0.01
    )
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
