"""Items of each kind, packed into rows and read out of them again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine.items import (
    ADD,
    COUNTER_ROW,
    EVENT_ROW,
    GAP_ROW,
    MARK,
    MARK_ROW,
    NO_EVENT,
    SPIN,
    WAIT,
    add,
    gap,
    mark,
    rows_of_arrays,
    rows_of_each,
    wait,
)
from dxt_replay.traces.schema import NO_STEP

COMMON = {"step": 4, "event": 6, "event_kind": 2, "due_ns": 1 << 40}


@pytest.mark.parametrize(
    ("make", "fields", "view", "packed"),
    [
        (gap, {"kind": SPIN, "duration_ns": 5, "recorded_ns": 7}, GAP_ROW, (SPIN, -1, 7, 5)),
        (mark, {"is_end": 1}, MARK_ROW, (MARK, -1, 1, 0)),
        (wait, {"counter": 3, "until": 8, "multiple": 4}, COUNTER_ROW, (WAIT, 3, 4, 8)),
        (add, {"counter": 3, "amount": 2, "multiple": 4}, COUNTER_ROW, (ADD, 3, 4, 2)),
    ],
)
@given(values=st.lists(st.integers(1, 1 << 20), max_size=5))
def test_an_item_is_what_the_loop_reads_and_is_read_back_by_its_names(make, fields, view, packed, values):
    row = rows_of_each([make(**fields, **COMMON)])
    assert row[["kind", "_slot", "_place", "_amount"]].item() == packed
    names = [name for name in (*fields, *COMMON) if name in view.names]
    assert [row.view(view)[name].item() for name in names] == [{**fields, **COMMON}[name] for name in names]
    several = make(**{**fields, "due_ns": np.array(values, dtype=np.int64)})
    each = [make(**fields, due_ns=value) for value in values]
    assert rows_of_arrays(several, len(values)).tolist() == rows_of_each(each).tolist()
    (plain,) = rows_of_each([make(**fields)]).view(EVENT_ROW)
    assert (plain["step"], plain["event"], plain["event_kind"]) == (NO_STEP, NO_EVENT, NO_EVENT)
