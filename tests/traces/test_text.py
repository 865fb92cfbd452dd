from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.traces.text import escaped, listed, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a b/é", "/a b/é"),
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202egpj", "\\u202egpj"),
        (b"/\xff", "/\\udcff"),
        (Path("/x\t"), "/x\\t"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: Path | bytes | str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
    assert escaped("\x00") == "\\x00"


@pytest.mark.parametrize(
    ("names", "shown"), [([], ""), (["a"], "a"), (["a", "b", "c"], "a, b, c"), (list("abcde"), "a, b, c and 2 more")]
)
def test_a_list_is_cut_and_says_by_how_many(names: list[str], shown: str) -> None:
    assert listed(names) == shown
