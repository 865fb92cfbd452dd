"""Items of each kind, packed into rows and read out of them again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine.items import ADD, MARK, RENAME, SLEEP, SPIN, WAIT
from dxt_replay.replay.plan.plan_row import (
    COUNTER_ROW,
    EVENT_ROW,
    GAP_ROW,
    MARK_ROW,
    NO_EVENT,
    OPERATION_ROW,
    PLAN_ROW,
    RENAME_ROW,
    Add,
    Gap,
    Mark,
    Wait,
    is_operation,
    new_file_ids,
    operation_rows,
    recorded_operations,
    rows_of_arrays,
    rows_of_each,
    set_new_slots,
)
from dxt_replay.traces.schema import NO_STEP, OPS

ITEMS = (
    (Gap, {"kind": SPIN, "duration_ns": 5, "recorded_ns": 7}, GAP_ROW, ("duration_ns", "recorded_ns")),
    (Mark, {"is_end": 1}, MARK_ROW, ("is_end",)),
    (Wait, {"counter": 3, "until": 8, "multiple": 4}, COUNTER_ROW, ("counter", "multiple")),
    (Add, {"counter": 3, "amount": 2, "multiple": 4}, COUNTER_ROW, ("counter", "amount", "multiple")),
)


@pytest.mark.parametrize("view", [OPERATION_ROW, RENAME_ROW, GAP_ROW, MARK_ROW, COUNTER_ROW, EVENT_ROW])
def test_every_view_has_the_columns_of_a_row_in_their_places(view):
    def layout(dtype):
        return [dtype.fields[name] for name in dtype.names]

    assert layout(view) == layout(PLAN_ROW)
    assert {"kind", "step", "due_ns"} < set(view.names)


@pytest.mark.parametrize(("kind", "fields", "view", "names"), ITEMS)
def test_what_an_item_holds_is_read_back_by_its_name(kind, fields, view, names):
    common = {"step": 4, "event": 6, "event_kind": 2, "due_ns": 1 << 40}
    item = kind(**fields, **common)
    (row,) = rows_of_each([item]).view(view)
    assert {name: row[name] for name in (*names, *common)} == {name: getattr(item, name) for name in (*names, *common)}


@pytest.mark.parametrize(("kind", "fields", "view", "names"), ITEMS)
@given(values=st.lists(st.integers(1, 1 << 20), max_size=5))
def test_arrays_and_single_items_give_the_same_rows(kind, fields, view, names, values):
    several = kind(**{**fields, names[0]: np.array(values, dtype=np.int64)}, due_ns=np.array(values, dtype=np.int64))
    each = [kind(**{**fields, names[0]: value}, due_ns=value) for value in values]
    assert rows_of_arrays(several, len(values)).tolist() == rows_of_each(each).tolist()


def test_the_loop_gets_of_each_kind_what_its_contract_says():
    rows = rows_of_each([kind(**fields) for kind, fields, _, _ in ITEMS])
    packed = rows[["kind", "_slot", "_place", "_amount"]].tolist()
    assert packed == [
        (SPIN, -1, 7, 5),
        (MARK, -1, 1, 0),
        (WAIT, 3, 4, 8),
        (ADD, 3, 4, 2),
    ]


def test_operations_are_recorded_as_the_capture_had_them_and_other_items_are_not():
    rename, seek = OPS.index("rename"), OPS.index("seek")
    rows = operation_rows(
        op=np.array([rename, seek]),
        api=np.array([1, 2]),
        origin=np.array([0, 1]),
        slot=np.array([10, 11]),
        file_id=np.array([3, 4]),
        step=np.array([NO_STEP, 9]),
        offset=np.array([-1, 77]),
        length=np.array([0, 6]),
    )
    set_new_slots(rows, rows["kind"] == RENAME, np.array([5]), np.array([12]))
    assert rows["_place"].tolist() == [12, 77], "the loop renames to a slot"
    rows = np.concatenate((rows, rows_of_each([Gap(kind=SLEEP, duration_ns=1)])))
    assert is_operation(rows).tolist() == [True, True, False]
    names = ("op", "api", "origin", "slot", "file_id", "step", "offset", "length")
    found = [tuple(row[name].item() for name in names) for row in recorded_operations(rows)]
    assert found == [(rename, 1, 0, 10, 3, NO_STEP, -1, 0), (seek, 2, 1, 11, 4, 9, 77, 6)]
    assert new_file_ids(rows).tolist() == [5, -1]
    assert rows.view(RENAME_ROW)["new_slot"][0] == 12, "the plan is as it was"


def test_an_item_belongs_to_no_step_and_no_event_unless_it_says_so():
    (row,) = rows_of_each([Add(counter=0)]).view(EVENT_ROW)
    assert (row["step"], row["event"], row["event_kind"]) == (NO_STEP, NO_EVENT, NO_EVENT)
    assert len(rows_of_each([])) == 0
