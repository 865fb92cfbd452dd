from __future__ import annotations

from pathlib import Path

import pytest

from traces.text import escaped, printable


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
