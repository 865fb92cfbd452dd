"""A training on a GPU, recorded with PyTorch's profiler: steps, evaluations, use of the GPU, what storage cost."""

from __future__ import annotations

from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.profiler_merge.given_files import find_profiles, find_recordings
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.measures.span_times import computed_in_loops, gpu_busy_in_profile
from tests import kineto_writer as writer
from tests.capture_builder import Span, build_capture
from tests.kineto_writer import kernel, mark
from tests.places import SHARED

GPU = SHARED / "captures/torch_gpu"


@pytest.mark.skipif(not GPU.is_dir(), reason="no recorded job on a GPU beside this checkout")
def test_a_training_on_a_gpu(tmp_path: Path) -> None:
    """Its truth: 134 steps, 2 evaluations, something on the GPU in 0.7698 of 5.280 s."""
    result = merge(find_recordings(GPU / "logs"), find_profiles(GPU / "profile"), tmp_path / "a.capture")
    assert not any("inferred" in text for text in result.info.warnings)
    capture = dxt_replay.open_capture(result.capture)
    found = dxt_replay.summary(capture)
    assert found.loop is not None
    assert (found.steps.count, found.steps.extended, found.loop.evaluations) == (134, 0, 2)
    assert found.loop.gpu_busy_pct == pytest.approx(100 * 0.7698 / 5.280, abs=0.05)
    limit = dxt_replay.storage_limit(capture)
    assert limit.limit_pct == pytest.approx(1.2, abs=1)  # an answer; what is right is not known


def test_a_profile_of_many_kernels_has_an_answer(tmp_path: Path) -> None:
    events = [mark(0, 0, 1_000_000), mark(1, 1_000_000, 2_000_000)]
    events += [kernel("k", 20 * i, 20 * i + 5, i) for i in range(100_000)]
    result = merge((), find_profiles(writer.write(tmp_path / "p" / "t.pt.trace.json", events).parent), tmp_path / "a")
    capture = dxt_replay.open_capture(result.capture)
    assert capture.spans.num_rows > 100_000
    found = dxt_replay.summary(capture)
    assert found.loop is not None
    assert found.loop.compute_pct == pytest.approx(25)
    with pytest.raises(dxt_replay.NoStorageLimitError, match="recorded"):
        dxt_replay.storage_limit(capture)


def test_use_of_several_gpus_is_their_mean_and_includes_collectives(tmp_path: Path) -> None:
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
    assert loop is not None
    assert (loop.input_wait_pct, loop.compute_pct, loop.compute_at_most) == (20, 70, True)
