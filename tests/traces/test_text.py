from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.traces.text import escaped, listed, printable, program_of


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


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("python3 -u -W ignore train.py", "train.py"),
        ("python -X dev train.py", "train.py"),
        ("/usr/bin/python3.11 -m package.train x", "package.train"),
        ("./solver input", "./solver"),
        ("python", "python"),
        ("", ""),
    ],
)
def test_the_program_of_a_command(command: str, program: str) -> None:
    assert program_of(command) == program
