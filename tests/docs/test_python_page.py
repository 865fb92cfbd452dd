"""docs/python.md documents the public interface: all of it, and nothing that there is not."""

from __future__ import annotations

import re

import dxt_replay
from tests.places import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_every_public_name_is_documented() -> None:
    words = {re.match(r"\w*", text).group() for text in re.findall(r"`([^`\n]+)`", PAGE)}  # type: ignore[union-attr]
    assert set(dxt_replay.__all__) - words == set()


def test_every_table_figure_and_format_is_documented() -> None:
    for name in (*dxt_replay.TABLES, *dxt_replay.FIGURES, *dxt_replay.FORMATS):
        assert f"`{name}`" in PAGE, name


def test_what_the_readme_calls_is_there() -> None:
    called = set(re.findall(r"dxt_replay\.(\w+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert "open_capture" in called
    assert called <= set(dxt_replay.__all__)


def test_what_is_called_on_the_page_is_there() -> None:
    called = set(re.findall(r"dxt_replay\.(\w+)", PAGE)) | set(re.findall(r"^\| `(\w+)\(", PAGE, flags=re.MULTILINE))
    assert len(called) > 15
    assert called - {"profiler_merge"} <= set(dxt_replay.__all__)
