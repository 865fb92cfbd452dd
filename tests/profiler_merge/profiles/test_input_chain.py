"""What each batch fetch used, from tf.data's own events: by rule, and on real captures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.span_parts import NOT_FETCHED
from dxt_replay.profiler_merge.profiles.spans import profile_spans
from dxt_replay.profiler_merge.profiles.xplane import find_profiles, read_profile
from dxt_replay.traces.schema import SPAN_KINDS
from tests import xplane_writer as writer
from tests.places import CAPTURES
from tests.xplane_writer import START_NS, Event, Line

LINES = {
    1: "python",
    2: "tf_data_iterator_get_next/2",
    3: "tf_data_iterator_resource/3",
    4: "tf_data_iterator_resource/4",
    5: "tf_data_private_threadpool/5",
}


def event(name: str, start: int, end: int, **stats: int) -> Event:
    return Event(name=name, start_ns=start, duration_ns=end - start, stats=stats)


def spans(tmp_path: Path, threads: dict[int, list[Event]]) -> dict[tuple[str, int], int | None]:
    """By name and begin of each pipeline span: the end of the fetch that used it, None for none."""
    lines = [
        Line(id=thread, name=LINES[thread], events=tuple(sorted(events, key=lambda e: (e.start_ns, -e.duration_ns))))
        for thread, events in threads.items()
    ]
    path = tmp_path / "node.xplane.pb"
    path.write_bytes(writer.profile(lines))
    found = profile_spans(read_profile(path))
    mine = np.flatnonzero(found.kind == SPAN_KINDS.index("pipeline"))
    names, starts = found.name[mine], found.start_ns[mine] - START_NS
    fetched = [None if end == NOT_FETCHED else end - START_NS for end in found.fetched_ns[mine].tolist()]
    return dict(zip(zip(names.tolist(), starts.tolist(), strict=True), fetched, strict=True))


def test_an_element_goes_through_every_buffer_to_the_fetch_that_used_it(tmp_path: Path) -> None:
    found = spans(
        tmp_path,
        {
            1: [event("train", 0, 1000, step_num=0), event("train", 1000, 2000, step_num=1)],
            2: [
                event("IteratorGetNextOp::DoCompute", 100, 400),
                event("PrefetchConsume", 390, 391, element_id=70),
                event("IteratorGetNextOp::DoCompute", 1100, 1200),
                event("PrefetchConsume", 1190, 1191, element_id=71),
            ],
            3: [
                event("PrefetchProduce", 110, 380, element_id=70),
                event("ParallelMapConsume", 300, 301, element_id=5),
                event("PrefetchProduce", 400, 800, element_id=71),
                event("ParallelMapConsume", 700, 701, element_id=6),
                event("PrefetchProduce", 900, 950, element_id=72),
            ],
            4: [
                event("ParallelMapProduce", 120, 200, element_id=5),
                event("FunctionRun", 190, 195, id=900),
                event("ParallelMapProduce", 210, 230, element_id=6),
                event("FunctionRun", 225, 228, id=901),
            ],
            5: [event("ExecutorState::Process", 200, 290, id=900), event("ExecutorState::Process", 300, 650, id=901)],
        },
    )
    assert found == {
        ("PrefetchProduce", 110): 400,
        ("PrefetchProduce", 400): 1200,
        ("PrefetchProduce", 900): None,  # made, and never fetched
        ("ParallelMapProduce", 120): 400,
        ("ParallelMapProduce", 210): 1200,
        ("ExecutorState::Process", 200): 400,
        ("ExecutorState::Process", 300): 1200,
    }


def test_a_batch_of_many_elements_is_used_by_one_fetch(tmp_path: Path) -> None:
    found = spans(
        tmp_path,
        {
            1: [event("train", 0, 1000, step_num=0)],
            2: [
                event("IteratorGetNextOp::DoCompute", 100, 500),
                event("MapAndBatchConsume", 490, 491, element_id=9),
            ],
            3: [event("MapAndBatchProduce", 110 + 20 * n, 120 + 20 * n, element_id=9) for n in range(3)],
        },
    )
    assert set(found.values()) == {500}


@pytest.mark.skipif(not CAPTURES.exists(), reason="the shared captures are not beside this checkout")
@pytest.mark.parametrize("name", ["keras_shuffle/slow", "keras_shuffle/fast", "keras_plain/slow", "imagenet"])
def test_real_pipelines_are_followed_from_the_read_to_the_fetch(name: str) -> None:
    profile: Profile = read_profile(find_profiles(CAPTURES / name)[0])
    found = profile_spans(profile)
    mine = found.kind == SPAN_KINDS.index("pipeline")
    waits = np.sort(found.end_ns[found.kind == SPAN_KINDS.index("input_wait")])
    fetched = found.fetched_ns[mine]
    used = fetched != NOT_FETCHED
    assert used.mean() > 0.95
    assert np.isin(fetched[used], waits).all()
    # Nothing is used before it was begun.
    assert (found.start_ns[mine][used] < fetched[used]).all()
