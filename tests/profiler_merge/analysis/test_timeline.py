from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.timeline import ALL_RANKS, round_width_ns, timeline
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.examples import examples

MS = 1_000_000


def small(tmp_path: Path) -> Capture:
    return build_capture(
        tmp_path,
        files=["/a", "/b"],
        ops=[
            read(0, length=1000, start_ns=0, end_ns=10 * MS),
            read(0, length=300, start_ns=5 * MS, end_ns=20 * MS, lane=1),
            write(1, length=7, start_ns=12 * MS, end_ns=13 * MS, rank=1),
            Op("open", 1, start_ns=11 * MS, rank=1),
            write(1, length=999, start_ns=1 * MS, end_ns=19 * MS, rank=1, origin="reconstructed"),
        ],
        spans=[Span("compute", start_ns=0, end_ns=15 * MS)],
    )


def test_every_column_of_a_small_capture(tmp_path: Path) -> None:
    found = timeline(small(tmp_path), bin_ns=10 * MS)
    assert (found.bins, found.ranks, found.start_ns) == (2, (ALL_RANKS,), 0)
    first, second = found.table.to_pylist()
    assert first == {
        "rank": ALL_RANKS,
        "start_ns": 0,
        "reads": 2,
        "writes": 0,
        "bytes_read": 1100,
        "bytes_written": 0,
        "read_mib_s": pytest.approx(1100 / 2**20 / 0.01),
        "write_mib_s": 0,
        "in_flight_mean": 1.5,
        "in_flight_max": 2,
        "io_busy_share": 0.5,
        "compute_busy_share": 1.0,
        "other_operations": 0,
        "reconstructed": 1,
    }
    assert (second["reads"], second["writes"], second["bytes_read"], second["bytes_written"]) == (0, 1, 200, 7)
    assert (second["in_flight_mean"], second["in_flight_max"]) == (pytest.approx(1.1), 2)
    assert (second["io_busy_share"], second["compute_busy_share"]) == (pytest.approx(0.55), 0.5)
    assert (second["other_operations"], second["reconstructed"]) == (1, 0)


def test_per_rank_rows_and_a_rank_without_a_profile(tmp_path: Path) -> None:
    found = timeline(small(tmp_path), bin_ns=10 * MS, per_rank=True)
    assert found.ranks == (0, 1)
    assert found.matrix("bytes_read").tolist() == [[1100, 200], [0, 0]]
    assert found.matrix("in_flight_max").tolist() == [[2, 1], [0, 1]]
    assert np.isnan(found.matrix("compute_busy_share")[1]).all()
    assert found.edges_ns().tolist() == [0, 10 * MS, 20 * MS]


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 2000), st.integers(0, 900), st.integers(0, 1 << 40), st.sampled_from("rw")
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([(0, 0, 300, 5, "r"), (0, 100, 50, 5, "r")], 700, 9)
@given(OPERATIONS, st.integers(1, 700), st.integers(1, 9))
def test_totals_are_exact_at_any_width(
    tmp_path: Path,
    rows: list[tuple[int, int, int, int, str]],
    width: int,
    group: int,
) -> None:
    ops = [
        (read if op == "r" else write)(0, rank=rank, start_ns=start, end_ns=start + length, length=size)
        for rank, start, length, size, op in rows
    ]
    capture = build_capture(tmp_path, files=["/a"], ops=ops, row_group_rows=group)
    over_all, by_rank = timeline(capture, bin_ns=width), timeline(capture, bin_ns=width, per_rank=True)
    for name, op in (("read", "r"), ("write", "w")):
        chosen = [row for row in rows if row[4] == op]
        suffix = "read" if op == "r" else "written"
        for found in (over_all, by_rank):
            assert found.matrix(f"{name}s").sum() == len(chosen)
            assert int(found.matrix(f"bytes_{suffix}").sum()) == sum(row[3] for row in chosen)
    for column in ("reads", "bytes_written", "in_flight_mean"):
        np.testing.assert_allclose(by_rank.matrix(column).sum(axis=0), over_all.matrix(column)[0])
    in_flight = np.zeros((4, 3600), dtype=np.int64)
    for rank, start, length, _, _ in rows:
        in_flight[rank, start : start + length] += 1
    begin = over_all.start_ns
    for number in range(over_all.bins):
        part = in_flight[:, begin + number * width : begin + (number + 1) * width]
        assert over_all.matrix("in_flight_max")[0, number] == (part.sum(axis=0).max() if part.size else 0)
        busy = by_rank.matrix("io_busy_share")[:, number] * width
        assert busy.tolist() == pytest.approx((part[list(by_rank.ranks)] > 0).sum(axis=1).tolist())


def test_operations_that_end_after_the_window_keep_their_bytes(tmp_path: Path) -> None:
    found = timeline(part_of(small(tmp_path), Part(from_ns=0, until_ns=10 * MS)), bin_ns=5 * MS)
    assert found.matrix("reads").sum() == 2
    assert found.matrix("bytes_read").sum() == 1300
    assert found.bins == 4


@pytest.mark.parametrize(("length_ns", "bins", "width_ns"), [(20, 7, 5), (7_533, 40, 200), (0, 3, 1), (100, 100, 1)])
def test_the_width_of_a_bin_is_a_round_number(length_ns: int, bins: int, width_ns: int) -> None:
    assert round_width_ns(length_ns, bins) == width_ns


def test_bins_begin_at_multiples_of_a_round_width(tmp_path: Path) -> None:
    late = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1, start_ns=2_319 * MS, end_ns=9_700 * MS)])
    found = timeline(late, bins=40)
    assert (found.start_ns, found.bin_ns, found.bins) == (2_200 * MS, 200 * MS, 38)
    window = timeline(part_of(late, Part(from_ns=2_319 * MS)), bins=40)
    assert window.start_ns == 2_319 * MS, "a window begins where it was asked to"


def test_too_many_bins_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose wider bins"):
        timeline(small(tmp_path), bin_ns=1)
    with pytest.raises(UsageError, match="nanosecond"):
        timeline(small(tmp_path), bin_ns=0)
