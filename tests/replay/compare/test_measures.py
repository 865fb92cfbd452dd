"""What one pass over both captures measures, against models in plain Python, whatever the batches and the processes;
and the cosine of the DLIO paper: three of its rows, its weakness, and what is left out of it."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.compare.exactness import LANE_BITS, Work
from dxt_replay.replay.compare.measures import BIN_NS, Curves, first_start_ns
from dxt_replay.replay.compare.timing import drift, relative_difference_pct, step_error
from dxt_replay.replay.compare.verdict import similarity
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.workers import ALONE, Workers
from tests.capture_builder import Op, Span, build_capture, read, spans_table, write
from tests.examples import examples
from tests.workers_equality import OPERATIONS, SPANS, plain

S = 1_000_000_000
FILES = ["/a", "/b.h5", "/c", "/d"]


def rows_of(rank=0, **columns):
    """Rows with these columns, and 0 in the others."""
    zeros = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
    names = ("op", "api", "file_id", "offset", "length", "lane", "start_ns", "end_ns", "origin")
    return OperationRows(rank=rank, **{**dict.fromkeys(names, zeros), **columns})


def test_first_start_is_that_of_a_read_or_write_of_any_rank(tmp_path):
    ops = [Op("open", 0, start_ns=-50), read(0, start_ns=7), write(0, rank=2, start_ns=-3), Op("close", 0, start_ns=99)]
    assert first_start_ns(build_capture(tmp_path, files=["/a"], ops=ops)) == -3
    assert first_start_ns(build_capture(tmp_path, name="empty")) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5 * BIN_NS), st.integers(0, 3 * BIN_NS), st.integers(0, 10_000)), max_size=15),
    st.integers(1, 6),
    st.integers(-BIN_NS, BIN_NS),
)
def test_curves_are_the_overlap_of_each_operation_with_each_bin(operations, batch, origin):
    found, later = Curves(origin), Curves(origin)
    for place in range(0, len(operations), batch):
        start, duration, length = np.array(operations[place : place + batch], dtype=np.int64).T
        rows = rows_of(start_ns=start + origin, end_ns=start + duration + origin, length=length)
        (later if place % 2 else found).add(rows)
    found.merge(later)
    bins = len(found.in_flight())
    in_flight, moved = np.zeros(bins), np.zeros(bins)
    for start_ns, duration_ns, size in operations:
        for place in range(bins):
            inside = max(0, min(start_ns + duration_ns, (place + 1) * BIN_NS) - max(start_ns, place * BIN_NS))
            in_flight[place] += inside / BIN_NS
            moved[place] += size * inside / max(duration_ns, 1)
        if not duration_ns:
            moved[start_ns // BIN_NS] += size
    np.testing.assert_allclose(found.in_flight(), in_flight, atol=1e-6)
    np.testing.assert_allclose(found.bytes_per_bin(), moved, atol=1e-3)
    for source, replay, expected in (([2, 2], [2, 2], 0), ([4], [3, 2], 75), ([0], [3], None), ([], [], None)):
        assert relative_difference_pct(np.array(source, dtype=float), np.array(replay, dtype=float)) == expected


# op, file, offset, length, lane
OPERATION = st.tuples(
    st.sampled_from([READ, WRITE]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)
)


def sequences(operations, batch=1000):
    work = Work()
    for begin in range(0, len(operations), batch):
        columns = np.array(operations[begin : begin + batch], dtype=np.int64).T
        rows = rows_of(**dict(zip(("op", "file_id", "offset", "length", "lane"), columns, strict=True)))
        work.add(rows, rows.file_id)
    return work.sequences()


@given(st.lists(OPERATION, max_size=12), st.lists(OPERATION, max_size=12), st.integers(1, 13))
def test_fingerprints_are_equal_exactly_where_sequences_are_whatever_the_batches(one, other, batch):
    for lanes, keys, prints in ((False, "file_key", "file_print"), (True, "lane_key", "lane_print")):
        told, known = [], []
        for operations in (one, other):
            found, by_key = sequences(operations, batch), defaultdict(list)
            told.append(dict(zip(getattr(found, keys).tolist(), getattr(found, prints).tolist(), strict=True)))
            for op, file, offset, length, lane in operations:
                by_key[file << LANE_BITS | lane if lanes else file].append((op, offset, length))
            known.append(by_key)
            assert told[-1].keys() == by_key.keys()
            moved = [[sum(length for op, *_, length in each if op == kind) for kind in (READ, WRITE)]
                     for _, each in sorted(by_key.items())]  # fmt: skip
            assert lanes or found.moves[:, 2:].tolist() == moved
        for common in known[0].keys() & known[1].keys():
            assert (told[0][common] == told[1][common]) == (known[0][common] == known[1][common])


def pair(folder, ops, changes):
    """A capture and a replay of it, in which some operations are another kind, or missing."""
    source = build_capture(folder, files=FILES, ops=ops, spans=SPANS, ranks=range(5), name="source")
    replayed = [
        replace(op, op="read" if change == 1 else op.op, due_ns=op.start_ns, start_ns=op.start_ns + 4096 * change)
        for op, change in zip(ops, changes, strict=False)
        if change != 2
    ]
    return source, build_capture(folder, files=FILES, ops=replayed, ranks=range(5), name="replay", replay_of=source)


@settings(max_examples=examples(8), phases=[Phase.generate])
@given(ops=OPERATIONS, changes=st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_the_ranks_alone_come_to_the_whole(ops, changes):
    with TemporaryDirectory() as folder:
        source, replay = pair(Path(folder), ops, changes)
        done = []
        found = compare(source, replay, on_rows=done.append, workers=Workers(1, piece_operations=1)).as_json()
        whole = compare(source, replay, workers=ALONE).as_json()
        # the curves are sums of fractions, whose last digits follow the order
        for name, value in whole.pop("curves").items():
            assert found["curves"][name] == (None if value is None else pytest.approx(value))
        del found["curves"]
        assert plain(found) == plain(whole)
        assert sum(done) == source.operation_count() + replay.operation_count()


def test_any_number_of_processes_comes_to_the_same_bits(tmp_path):
    ops = [
        read(number % 4, offset=4096 * number, length=4000 + number, start_ns=977 * number, rank=number % 5)
        for number in range(500)
    ]
    source, replay = pair(tmp_path, ops, [0, 3, 0, 1, 0] * 100)
    found = plain(compare(source, replay, workers=Workers(1, piece_operations=1)))
    with Workers(2, piece_operations=1) as workers:
        assert plain(compare(source, replay, workers=workers)) == found


# ----------------------------------------------------------------------------------------------------------- the times

START = np.sort(np.random.default_rng(0).integers(0, 100 * S, 5000))


@given(st.floats(-5000, 5000), st.integers(-(10**9), 10**9), st.sampled_from([1, 4]))
def test_a_clock_that_runs_wrong_is_measured(ppm, offset, speed):
    slope, low, high = drift(START, np.rint(START / speed * (1 + ppm * 1e-6)).astype(np.int64) + offset, speed)
    assert (slope, low <= slope <= high) == (pytest.approx(ppm, abs=0.1), True)


def test_drift_is_told_from_operations_that_were_late():
    rng = np.random.default_rng(1)
    late = rng.exponential(20_000, len(START)) + np.where(rng.random(len(START)) < 0.1, 50_000_000, 0)
    slope, low, high = drift(START, START + late.astype(np.int64))
    assert (low < 0 < high, abs(slope) < 1) == (True, True)
    slope, low, _ = drift(START, np.rint(START * (1 + 30e-6) + rng.exponential(50_000, len(START))).astype(np.int64))
    assert (slope, low > 20) == (pytest.approx(30, abs=2), True)
    for few in ([], [5], [7, 7, 7], [0, 1, 10**9]):
        assert drift(*[np.array(few, dtype=np.int64)] * 2) is None


@pytest.mark.parametrize(
    ("recorded", "replayed", "first", "speed", "expected"),
    [
        ([100, 200, 400], [110, 200, 300], 0, 1, (10, 25, 3)),
        ([100, 200, 400], [110, 200, 300], None, 1, (10, 25, 3)),  # all have one number: matched by place
        ([100, 200], [200, 100], 1, 1, (0, 0, 1)),
        ([100, 200], [50, 100], 0, 2, (0, 0, 2)),
        ([100], [], 0, 1, None),
    ],
)
def test_steps_are_matched_by_number_or_place(recorded, replayed, first, speed, expected):
    def steps(durations, first):
        starts = np.cumsum([0, *durations]).tolist()
        names = [7 if first is None else first + place for place in range(len(durations))]
        return spans_table([Span("step", a, b, step=n) for a, b, n in zip(starts, starts[1:], names, strict=False)])

    found = step_error(steps(recorded, first and 0), steps(replayed, first), speed)
    assert (found and (found.p50, found.max, found.steps)) == (expected and pytest.approx(expected))


# ------------------------------------------------------------------------------------------------------ the similarity


def cosine(differences):
    """Of factors with these printed differences: the larger side of each is 1."""
    both = [(1.0, 1.0 - each) if each >= 0 else (1.0 + each, 1.0) for each in differences]
    return similarity(*(dict(enumerate(side)) for side in zip(*both, strict=True))).cosine


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ((0.18, 0.07, -0.01, -0.01, 0.0, 0.0, -0.65, -0.53), 0.950),  # Imagenet
        ((-0.05, 0.0, 0.15, 0.13, -0.38, 0.31, 0.32, 0.42), 0.964),  # Cosmic Tagger
        ((-0.1, -0.34, 0.37, 0.27, 0.0, 0.71, 0.0, 0.26), 0.937),  # CosmoFlow
        *(([1 - ratio] * 4 + [ratio - 1] * 4, 2 * ratio / (1 + ratio**2)) for ratio in (0.8, 0.7, 0.5)),
        *(([1 - ratio] * 7, 1) for ratio in (0.01, 0.5, 1)),  # the weakness that is printed with it
    ],
)
def test_the_cosine(differences, expected):
    assert cosine(differences) == pytest.approx(expected, abs=5e-4)


def test_factors_that_are_0_and_those_of_the_storage():
    found = similarity({"a": 2, "b": 0}, {"a": 1, "b": 0})
    assert found.cosine == pytest.approx(1)
    assert (found.factors["a"].difference, found.factors["b"].difference) == (0.5, None)
    assert (similarity({"a": 0}, {"a": 0}).cosine, similarity({"a": 0}, {"a": 3}).cosine) == (None, 0)
    source = {"io_time_s": 10.0, "bytes": 5.0, "files": 2.0, "bandwidth_median": 1.0, "bandwidth_mean": 1.0}
    replay = {**source, "io_time_s": 1.0, "bandwidth_median": 10.0, "bandwidth_mean": 10.0}
    compared = similarity(source, replay)
    assert (compared.cosine < 0.9, compared.workload_cosine) == (True, pytest.approx(1.0))
    assert similarity(source, {**replay, "bytes": 1.0}).workload_cosine == pytest.approx(0.8321, abs=1e-4)
