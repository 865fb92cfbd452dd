"""docs/python.md documents the public interface: all of it, and nothing that there is not."""

from __future__ import annotations

import re

import dxt_replay
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.replay.commands.face import stated
from dxt_replay.traces.paces import PACE_CHOICES, Pace
from tests.docs.reference import REFERENCE
from tests.places import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_every_public_name_is_documented() -> None:
    words = {re.match(r"\w*", text).group() for text in re.findall(r"`([^`\n]+)`", PAGE)}  # type: ignore[union-attr]
    described = set(re.findall(r"^### (\w+)\n\n```python\n.+\n```\n\n\S", REFERENCE.generated("python"), re.MULTILINE))
    assert set(dxt_replay.__all__) - words - described == set()
    functions = {name for name in dxt_replay.__all__ if name.islower()}
    assert functions <= words & described


def test_a_signature_has_names_and_defaults() -> None:
    assert "timeline(capture, *, bin=None, bins=None, per_rank=False, executor=None) -> Timeline\n" in (
        REFERENCE.generated("python")
    )
    assert "class Comparison\n" in REFERENCE.generated("python")


def test_every_figure_format_and_table_beyond_those_of_the_tables_page_is_documented() -> None:
    others = set(dxt_replay.TABLES) - set(TABLES)
    assert "by-rank" in others
    for name in (*others, *dxt_replay.FIGURES, *dxt_replay.FORMATS):
        assert f"`{name}`" in PAGE, name


def test_the_paces_of_the_readme_are_those_of_the_help() -> None:
    rows = re.findall(
        r"^\| `(\w+)`(| \(default\)) \| (.*?) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    default = stated(dxt_replay.run)["pace"].default
    listed = [(name, bool(mark), meaning) for name, mark, meaning in rows if name in PACE_CHOICES]
    assert listed == [(pace.value, pace.value == default, pace.meaning) for pace in Pace]


def test_what_the_readme_calls_is_there() -> None:
    called = set(re.findall(r"dxt_replay\.(\w+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert "open_capture" in called
    assert called <= set(dxt_replay.__all__)


def test_what_is_called_on_the_page_is_there() -> None:
    rows = "".join(re.findall(r"^\| .*", PAGE, flags=re.MULTILINE))
    called = set(re.findall(r"dxt_replay\.(\w+)", PAGE)) | set(re.findall(r"`(\w+)`", rows))
    assert len(called) > 15
    assert called <= set(dxt_replay.__all__)
