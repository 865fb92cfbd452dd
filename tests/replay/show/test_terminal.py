"""How sections become lines: as wide as the terminal, no number broken, colours on a terminal alone."""

from __future__ import annotations

import io
import sys

import pytest

from dxt_replay.replay.show.section import WARNINGS, Column, Kind, Section, bar, in_brief, prose
from dxt_replay.replay.show.terminal import print_sections

PATH = "/scratch/" + "deep/" * 20 + "a-b-c.bin"
WIDE = Section(
    title="Files",
    columns=(Column(head="file", kind=Kind.PATH), "bytes read", "I/O time, sum of all", Column(kind=Kind.BAR)),
    rows=(
        ("/scratch/imagenet/data/part-0004.tfrecord", "1.25 GiB", "12.345 s", "████████████"),
        ("/b", "3 B", "1 ns", "▌"),
    ),
)
NUMBERS = tuple(f"{number}.345 GiB" for number in range(12_340, 12_346))


@pytest.mark.parametrize(
    ("sections", "lines"),
    [
        (
            [Section(title="One", rows=(("a", "b"),)), Section(title="Two", rows=(("c",),), notes=("d",))],
            ["One", "a  b", "", "Two", "c", "d"],
        ),
        # Text is no markup, and commands no terminal.
        (
            [Section(title="[red]a[/red]", rows=(("/evil\x1b[2J", "/odd\udcff"),), prose=True)],
            ["[red]a[/red]", "/evil\\x1b[2J  /odd\\udcff"],
        ),
        # Numbers alone may make a line too long, and a path within a sentence stays whole.
        ([Section(title="", columns=("", *"abcdef"), rows=(("x", *NUMBERS),))], ["  ".join(("x", *NUMBERS))]),
        ([prose("", [f"the file {PATH} is damaged"])], ["the file", PATH, "is damaged"]),
        # A warning in brief is its fact.
        (
            in_brief([prose("", ["The answer."]), prose(WARNINGS, [
                "rank 0: 74 steps are inferred: their starts from the reads", "/a/b.json: 3 events left out: no JSON",
                "rank 0: late"], brief=True)]),
            ["The answer.", "", "warning: rank 0: 74 steps are inferred", "warning: /a/b.json: 3 events left out",
             "and 1 more warning", "--details shows the rest."],
        ),
    ],
    ids=["apart", "plain", "numbers", "path", "brief"],
)  # fmt: skip
def test_what_is_printed(
    sections: list[Section], lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_sections(sections)
    found = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert found[-len(lines) :] == lines


@pytest.mark.parametrize(
    ("share", "width", "expected"),
    [(0, 4, ""), (1, 4, "████"), (0.5, 4, "██"), (0.6, 4, "██▌"), (1e-9, 4, "▌"), (7, 3, "███")],
)
def test_bars(share: float, width: int, expected: str) -> None:
    assert bar(share, width) == expected


def test_an_output_without_unicode_has_plain_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    print_sections([WIDE])
    out.flush()
    assert b"############" in out.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120])
def test_a_table_is_as_wide_as_it_may_be_and_breaks_no_number(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_sections([WIDE])
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= width
    (row,) = (line for line in lines if "part-0004" in line)
    assert "1.25 GiB" in row
    assert "12.345 s" in row
    whole = "/scratch/imagenet/data/part-0004.tfrecord" in row
    assert (whole, "…" in row, "█" in row) == (width >= 80, width < 80, width >= 80), "a bar goes before a name"


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_severities_and_verdicts_have_colours_on_a_terminal(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    printed = io.StringIO()
    printed.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", printed)
    print_sections([Section(title="warning: slow", rows=(("timing", "fail"), ("path", "high/way")), prose=True)])
    for text, expected in (("\x1b[1;33mwarning: slow", coloured), ("\x1b[1;31mfail", coloured), ("1mhigh/way", False)):
        assert (text in printed.getvalue()) == expected
