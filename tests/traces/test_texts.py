"""Foreign text, quantities as text, and text in CSV files."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.text import escaped, listed, printable, program_of
from dxt_replay.traces.units import (
    format_bytes,
    format_count,
    format_duration,
    format_rate_change,
    format_signed,
    format_slowdown,
    seconds_to_ns,
)

SHOWN: dict[Callable[..., str], list[tuple[object, str]]] = {
    printable: [
        ("/a b/é", "/a b/é"), ("a\nb", "a\\nb"), ("\x1b[2J", "\\x1b[2J"), ("\u202egpj", "\\u202egpj"),
        (b"/\xff", "/\\udcff"), (Path("/x\t"), "/x\\t"),
    ],
    escaped: [("\x00", "\\x00")],
    listed: [([], ""), (["a"], "a"), (["a", "b", "c"], "a, b, c"), (list("abcde"), "a, b, c and 2 more")],
    program_of: [
        ("python train.py --epochs 3", "train.py"), ("python3 -u -W ignore train.py", "train.py"), ("", ""),
        ("python -X dev train.py", "train.py"), ("/usr/bin/python3.11 -m package.train x", "package.train"),
        ("./solver input", "./solver"), ("python", "python"),
    ],
    format_bytes: [
        (0, "0 B"), (1023, "1023 B"), (161.7, "162 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (262144, "256 KiB"),
        (1 << 40, "1.00 TiB"), (1024**2 - 1, "1.00 MiB"),
    ],
    format_duration: [
        (0, "0 ns"), (999, "999 ns"), (1500, "1.50 us"), (25_000, "25.0 us"), (999_600, "1.00 ms"),
        (1_234_000_000, "1.234 s"),
    ],
    format_count: [(1234567, "1,234,567")],
    partial(format_rate_change, same_pct=0.5): [
        (1.0, "about the same"), (1.41, "41 % higher"), (0.6, "40 % lower"), (6.4, "6.4 times as high"),
    ],
    format_slowdown: [(1 / 155.4, "155 times faster"), (1.2, "20 % slower"), (3.0, "3.0 times slower"), (None, "-")],
    partial(format_signed, digits=1): [(-0.04, "0.0"), (0.04, "0.0"), (-0.06, "-0.1"), (1.25, "+1.2")],
}  # fmt: skip


@pytest.mark.parametrize(("show", "given", "text"), [(show, *case) for show, cases in SHOWN.items() for case in cases])
def test_texts_for_people(show: Callable[..., str], given: object, text: str) -> None:
    assert show(given) == text
    assert printable(text) == text, "nothing that a terminal would obey"


@given(st.integers(0, 4_000_000), st.integers(0, 999_999_999))
def test_seconds_become_the_nearest_nanosecond(whole: int, fraction: int) -> None:
    seconds = whole + fraction / 1e9
    assert abs(seconds_to_ns(seconds) - (whole * 10**9 + fraction)) <= 1
    assert seconds_to_ns(np.array([seconds])).tolist() == [seconds_to_ns(seconds)]


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
