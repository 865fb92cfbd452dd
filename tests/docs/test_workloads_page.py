"""docs/workloads.md names every key of a description, and every shipped workload."""

from __future__ import annotations

import re

from dxt_replay.workloads.description import READINGS
from dxt_replay.workloads.keys import KEYS, NOT_FOLLOWED
from dxt_replay.workloads.workload_source import shipped_names
from tests.places import ROOT

PAGE = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"`([^`\n]+)`", PAGE))


def test_every_key_is_on_the_page() -> None:
    for name in (*KEYS, *(name for name, (kind, _) in NOT_FOLLOWED.items() if kind != "not I/O")):
        assert name in WORDS or name.partition(".")[2] in WORDS, name


def test_every_reading_and_shipped_workload_is_on_the_page() -> None:
    assert set(READINGS) <= WORDS
    families = [word.removesuffix("*") for word in WORDS if word.endswith("_*")]
    for name in shipped_names():
        assert name in WORDS or name.removesuffix("_zero3") in WORDS or name.startswith(tuple(families)), name
