"""Nesting on made-up threads whose offset is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.clocks import nesting
from dxt_replay.profiler_merge.clocks.nesting import align_nesting, nesting_events
from dxt_replay.profiler_merge.profiles.xplane import read_profile
from dxt_replay.traces.errors import AlignmentError
from tests import xplane_writer as writer
from tests.examples import examples
from tests.xplane_writer import START_NS, Event, Line

EPOCH = 1_795_000_000_000_000_000


def made(seed, offset=-7_000_000, reads=200, threads=4, idle=300):
    """Reads inside events of 5 to 40 us, one in three events holding one, and `idle` events that hold none.

    Returns (segment start, end, thread, event start, end, thread) with the segments `offset` away on their own clock.
    """
    rng = np.random.default_rng(seed)
    count = reads + idle
    start = EPOCH + np.sort(rng.integers(0, 4_000_000_000, count))
    end = start + rng.integers(5_000, 40_000, count)
    thread = rng.integers(0, threads, count)
    holds = np.sort(rng.permutation(count)[:reads])
    begin = start[holds] + rng.integers(200, 2_000, reads)
    stop = np.maximum(begin, end[holds] - rng.integers(200, 2_000, reads))
    order = rng.permutation(reads)
    return (begin - offset)[order], (stop - offset)[order], thread[holds][order], start, end, thread


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 10_000), offset=st.integers(-60_000_000, 0), threaded=st.booleans())
def test_the_offset_is_found(seed, offset, threaded):
    start, end, thread, event_start, event_end, event_thread = made(seed, offset)
    known = {"segment_thread": thread, "event_thread": event_thread} if threaded else {}
    found = align_nesting(start, end, event_start, event_end, **known)
    low, high = found.interval_ns
    assert low <= offset <= high
    assert high - low < 5_000
    assert found.method == "nesting"
    assert found.residual_ns == (high - low + 1) // 2
    assert found.evidence["nested"] == found.evidence["segments"] == 200
    assert found.evidence["share"] == 1.0
    assert found.evidence["ratio"] > 3
    assert found.evidence["threads"] == threaded


def test_without_an_epoch_the_whole_range_is_searched():
    start, end, _, event_start, event_end, _ = made(1)
    found = align_nesting(start, end, event_start - EPOCH, event_end - EPOCH, window_ns=None)
    assert found.interval_ns[0] <= -7_000_000 - EPOCH <= found.interval_ns[1]


def test_reads_outside_of_the_profile_do_not_count_against_it():
    start, end, _, event_start, event_end, _ = made(2)
    early = start[:150] - 30_000_000_000
    found = align_nesting(np.append(early, start), np.append(early + 10, end), event_start, event_end)
    assert found.evidence["segments"] == 350
    assert found.evidence["share"] == 1.0
    assert found.interval_ns[0] <= -7_000_000 <= found.interval_ns[1]


def test_a_segment_counts_once_however_many_events_could_hold_it():
    """Three reads that fit one place, against a crowd of events in another place that all could hold the first."""
    start, end, _, event_start, event_end, _ = made(3, reads=40, idle=40)
    crowd = np.full(500, start[0] - 30_000_000 - 100)
    found = align_nesting(start, end, np.append(event_start, crowd), np.append(event_end, crowd + 60_000))
    assert found.interval_ns[0] <= -7_000_000 <= found.interval_ns[1]
    assert found.evidence["nested"] == 40


def test_threads_that_differ_do_not_nest():
    start, end, thread, event_start, event_end, event_thread = made(4)
    with pytest.raises(AlignmentError, match="only 0 of 200 reads"):
        align_nesting(start, end, event_start, event_end, segment_thread=thread + 100, event_thread=event_thread)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, e, a, b: (s[:0], e[:0], a, b), "needs reads in the log \\(0 found"),
        (lambda s, e, a, b: (s, e, a[:0], b[:0]), "events around them in the profile \\(0 found"),
        (lambda s, e, a, b: (s[:4], e[:4], a, b), "only 4 of 4 reads"),
        (lambda s, e, a, b: (s, s + 10**9, a, b), "only 0 of 200 reads"),
        (lambda s, e, a, b: (s, e, a - 10**12, b - 10**12), "only 0 of 200 reads"),
        (lambda s, e, a, b: (s, e, a, b + 30_000_000), "fix the offset only|times as many reads"),
        (
            lambda s, e, a, b: (EPOCH + np.arange(200) * 10**7, EPOCH + np.arange(200) * 10**7 + 9, *_periodic()),
            "times as many reads",
        ),
    ],
)
def test_weak_answers_are_refused(change, message):
    start, end, _, event_start, event_end, _ = made(5)
    with pytest.raises(AlignmentError, match=message):
        align_nesting(*change(start, end, event_start, event_end))


def _periodic():
    """Events as regular as the reads: every period fits nearly as well."""
    start = EPOCH + np.arange(200) * 10**7 - 5_000
    return start, start + 20_000


def test_reads_of_another_process_are_refused():
    start, end, *_ = made(6)
    *_, event_start, event_end, _ = made(7)
    with pytest.raises(AlignmentError, match=r"of 200 reads lie|times as many reads"):
        align_nesting(start, end, event_start, event_end)


def test_many_pairs_are_sampled_and_chunked(monkeypatch):
    start, end, _, event_start, event_end, _ = made(8, reads=600, idle=600)
    whole = align_nesting(start, end, event_start, event_end)
    monkeypatch.setattr(nesting, "_MAX_PAIRS", 20_000)
    sampled = align_nesting(start, end, event_start, event_end)
    assert sampled.interval_ns == whole.interval_ns
    assert sampled.evidence["nested"] == whole.evidence["nested"] == 600
    assert sampled.evidence["ratio"] != whole.evidence["ratio"]


def _profile(tmp_path, lines):
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(writer.profile(lines))
    return read_profile(path)


def test_classes_of_events(tmp_path):
    leaf = "Iterator::Root::Prefetch::FlatMap[0]::TFRecord"
    names = [leaf, "Iterator::Root::Prefetch::FlatMap[0]", "ReadFile:ReadFile", "p/PyFunc:PyFunc", "Iterator::TextLine"]
    reader = Line(
        id=5,
        name="tf_data_x/5",
        events=tuple(Event(name=n, start_ns=9 - i, duration_ns=1) for i, n in enumerate(names)),
    )
    main = Line(
        id=1,
        name="python",
        events=(Event(name="train", stats={"step_num": 0}, duration_ns=9), Event(name="next_batch")),
    )
    found = nesting_events(_profile(tmp_path, [main, reader]))
    assert [(events.event_class, len(events)) for events in found] == [("dataset", 2), ("read_file", 1), ("py_func", 1)]
    assert (found[0].start_ns - START_NS).tolist() == [5, 9]
    assert found[0].line_id.tolist() == [5, 5]


def test_the_training_thread_counts_where_no_pipeline_reads(tmp_path):
    main = (
        Event(name="train", stats={"step_num": 0}, duration_ns=9),
        Event(name="next_batch", duration_ns=3),
        Event(name="EagerLocalExecute: MergeV2Checkpoints", start_ns=5),
    )
    lines = [Line(id=1, name="python", events=main), Line(id=2, name="other", events=(Event(name="next_batch"),))]
    found = nesting_events(_profile(tmp_path, lines))
    assert [(events.event_class, events.line_id.tolist()) for events in found] == [("batch", [1]), ("checkpoint", [1])]


def test_a_profile_without_reading_events(tmp_path):
    assert nesting_events(_profile(tmp_path, [Line(id=1, name="python", events=(Event(name="x"),))])) == ()
