"""The events of the training thread: collectives that run beside it in a PyTorch job."""

from __future__ import annotations

from pathlib import Path

from dxt_replay.replay.causal.events import schedule
from dxt_replay.replay.causal.loop import WORKERS, TrainingLoop, training_loop
from dxt_replay.replay.causal.ranks import planned_lanes, steps_of
from dxt_replay.replay.plan.pacing import Pace, Pacing
from tests.capture_builder import Span, build_capture, read, write
from tests.simulated_loader import FETCH

STEP_NS, STEPS, THREAD, BESIDE = 1000, 4, 7, 9


def loop_of(folder: Path, collectives: list[tuple[int, int]], fetch: str = FETCH) -> TrainingLoop:
    """A loop whose steps begin with a fetch of 100 ns, with collectives of another thread."""
    begins = [STEP_NS * number for number in range(1, STEPS + 1)]
    spans = [Span("step", begin, begin + 990, thread=THREAD, step=number) for number, begin in enumerate(begins)]
    spans += [Span("input_wait", begin, begin + 100, name=fetch, thread=THREAD) for begin in begins]
    spans += [Span("collective", begin, end, name="gloo:all_reduce", thread=BESIDE) for begin, end in collectives]
    capture = build_capture(folder, files=["/data"], ops=[read(0, length=1, start_ns=0, end_ns=1)], spans=spans)
    return training_loop(capture.spans, 0)


def test_the_last_of_the_collectives_beside_a_step_is_the_one_that_the_thread_waits_for(tmp_path: Path) -> None:
    buckets = [(1300, 1320), (1400, 1440), (2300, 2310), (3300, 3350), (3200, 3250), (4500, 4600)]
    loop = loop_of(tmp_path, buckets)
    assert loop.begin_ns[loop.collectives].tolist() == [1400, 2300, 3300, 4500]


def test_a_collective_that_outlasts_a_batch_fetch_does_not_hide_it(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, [(1900, 2150)])
    assert (loop.loader == WORKERS).sum() == STEPS
    assert loop.end_ns[loop.collectives].tolist() == [2000]
    assert loop.begin_ns[loop.fetches].tolist() == [1000, 2000, 3000, 4000]


def test_a_collective_within_a_checkpoint_divides_it(tmp_path: Path) -> None:
    spans = [Span("step", 1000, 1990, thread=THREAD, step=0)]
    spans += [Span("checkpoint", 1300, 1700, thread=THREAD), Span("collective", 1500, 1550, thread=BESIDE)]
    capture = build_capture(tmp_path, files=["/data"], ops=[read(0, length=1, start_ns=0, end_ns=1)], spans=spans)
    loop = training_loop(capture.spans, 0)
    assert loop.begin_ns[loop.checkpoints].tolist() == [1300, 1550]
    assert loop.begin_ns[loop.collectives].tolist() == [1500]


def test_no_rank_goes_on_before_all_ranks_have_written_a_save_in_the_background(tmp_path: Path) -> None:
    """Rank 1 writes 5,000 ns longer than recorded, and rank 0 waits for it, although its own writes end in time."""
    spans, ops = [], [read(0, length=1, start_ns=0, end_ns=1, rank=rank) for rank in (0, 1)]
    for rank in (0, 1):
        spans += [Span("step", 1000, 2000, thread=THREAD, step=0, rank=rank)]
        spans += [Span("checkpoint", 1200, 1250, name="checkpoint_async", thread=THREAD, rank=rank)]
        spans += [Span("checkpoint", 1700, 1900, name="checkpoint_wait", thread=THREAD, rank=rank)]
        ops += [write(1 + rank, length=9, start_ns=1300, end_ns=1800 + 50 * rank, rank=rank, lane=1)]
    capture = build_capture(tmp_path, files=["/data", "/save/0", "/save/1"], ops=ops, spans=spans)
    lanes = planned_lanes(capture, steps_of(capture), Pacing(pace=Pace.STEPS))
    items, durations = lanes[1, 1]
    lanes[1, 1] = items, durations + 5_000 * (durations > 0)
    found = schedule(lanes)
    # After the writes rank 1 was busy for 50 ns, the rest of its wait, and the step for 100 ns more.
    assert [int(found[rank, "training"].end_ns[-1]) for rank in (0, 1)] == [1850 + 5000 + 50 + 100] * 2


def test_the_end_of_a_background_save_within_another_event_comes_at_its_end(tmp_path: Path) -> None:
    spans = [Span("step", 1000, 1990, thread=THREAD, step=0)]
    spans += [Span("checkpoint", 1200, 1250, name="checkpoint_async", thread=THREAD)]
    spans += [Span("collective", 1300, 1900, thread=BESIDE)]
    spans += [Span("checkpoint", 1400, 1500, name="checkpoint_wait", thread=THREAD)]
    capture = build_capture(tmp_path, files=["/data"], ops=[read(0, length=1, start_ns=0, end_ns=1)], spans=spans)
    loop = training_loop(capture.spans, 0)
    assert (loop.begin_ns[1:] >= loop.end_ns[:-1]).all()
    assert loop.begin_ns[loop.collectives].tolist()[-1] == 1900
