from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export._row_text import Part, Texts, row_text

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def texts_of(rows: int, parts: list[Part]) -> list[str]:
    text, ends = row_text(rows, parts)
    assert ends[-1:].tolist() == ([len(text)] if rows else [])
    return [bytes(text[left:right]).decode() for left, right in zip([0, *ends.tolist()], ends.tolist(), strict=False)]


@given(st.lists(INT64, max_size=20), st.integers(0, 18))
@example([-(1 << 63), (1 << 63) - 1, 0, -1, 10**18], 18)
@example([-(1 << 63), (1 << 63) - 1, 0, -1, 10**18], 0)
def test_numbers_have_all_their_digits(numbers: list[int], digits: int) -> None:
    found = texts_of(len(numbers), [Part(b"", np.array(numbers, dtype=np.int64), digits=digits)])
    assert found == [f"{Decimal(number).scaleb(-digits):.{digits}f}" for number in numbers]


@given(st.lists(st.tuples(INT64, st.booleans(), st.integers(0, 2)), max_size=20))
def test_a_row_is_the_parts_that_it_has(rows: list[tuple[int, bool, int]]) -> None:
    number = np.array([row[0] for row in rows], dtype=np.int64)
    present = np.array([row[1] for row in rows], dtype=bool)
    choice = np.array([row[2] for row in rows], dtype=np.int8)
    names = ["", "b", "a longer name"]
    parts = [
        Part(b"n="),
        Part(b"+", number, present=present),
        Part(b";", choice, texts=Texts([name.encode() for name in names])),
        Part(b"!", present=present),
    ]
    assert texts_of(len(rows), parts) == [
        f"n={f'+{value}' if some else ''};{names[of]}{'!' if some else ''}" for value, some, of in rows
    ]


def test_a_part_that_no_row_has_is_left_out_and_still_held_to_the_rows() -> None:
    never = np.zeros(2, dtype=bool)
    assert (
        texts_of(2, [Part(b"a"), Part(b"+", np.array([1, 2]), present=never), Part(b"!", present=never)]) == ["a"] * 2
    )
    with pytest.raises(ValueError, match="2 rows instead of 3"):
        row_text(3, [Part(b"!", present=never)])


def test_columns_may_be_strided() -> None:
    assert texts_of(2, [Part(b"", np.array([1, 2, 3, 4])[::2])]) == ["1", "3"]


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_without_a_text_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match="of 2"):
        Part(b"", np.array([0, index]), texts=Texts([b"a", b"b"]))


def test_columns_of_other_lengths_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 rows instead of 2"):
        row_text(2, [Part(b"", np.zeros(3))])
    with pytest.raises(ValueError, match="a mask of 1 rows for 3"):
        Part(b"", np.zeros(3), present=np.ones(1, dtype=bool))
    with pytest.raises(ValueError, match="19 digits"):
        Part(b"", np.zeros(3), digits=19)
