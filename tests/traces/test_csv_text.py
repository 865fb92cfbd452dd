from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.csv_text import as_plain_text


def plain(text: str | None) -> str | None:
    shown: str | None = as_plain_text(pa.array([text], pa.string()))[0].as_py()
    return shown


@pytest.mark.parametrize(
    "text", ["=cmd|x!A0", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "\r=1", "'=1", "-", "1-2"[1:] + "+A1"]
)
def test_a_formula_becomes_text(text: str) -> None:
    assert plain(text) == f"'{text}"


@pytest.mark.parametrize("text", ["/data/=a", "", "a=b", "'quoted'", "-1", "+0.5e-3", "-12.", "12", None])
def test_names_and_numbers_stay(text: str | None) -> None:
    assert plain(text) == text


@given(st.lists(st.text(alphabet="=+-@\t\r'a/1.") | st.none()))
def test_the_values_can_be_read_back(texts: list[str | None]) -> None:
    shown = as_plain_text(pa.array(texts, pa.string())).to_pylist()
    back = [None if text is None else re.sub(r"\A'(?='*[=+@\t\r-])", "", text) for text in shown]
    assert back == texts
