"""The registry of sources: each names readers that exist, and the documentation has each that is read."""

from __future__ import annotations

import re

import pytest

from dxt_replay.profiler_merge.sources import SOURCES, Source, reader
from tests.places import ROOT

SECTION = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8").partition("## Files of each tool")[2]
TABLE = [line for line in SECTION.partition("\n\n## ")[0].splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.kind)
def test_a_source_that_is_read_has_readers_and_a_place_in_the_documentation(source: Source) -> None:
    names = [name for name in (source.trace, source.recording, source.requests, source.spans, source.belongs) if name]
    assert all(callable(reader(name)) for name in names)
    assert bool(names) is not source.profile
    assert any(re.match(rf"\| [^|]*\b{source.tool}\b", line) for line in TABLE), source.tool


def test_the_documentation_has_no_other_source() -> None:
    assert len(TABLE) == len(SOURCES)
