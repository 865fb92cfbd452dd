"""The site names every key of a description, docs/workloads.md every shipped workload."""

from __future__ import annotations

import re

from dxt_replay.workloads.description import READINGS
from dxt_replay.workloads.source import shipped_names
from dxt_replay.workloads.values import KEYS, NOT_FOLLOWED, SPELLINGS
from tests.docs.reference import REFERENCE
from tests.places import ROOT

PAGE = "\n\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("dlio", "workloads"))
WORDS = set(re.findall(r"`([^`\n]+)`", PAGE))


def test_the_site_has_every_key_of_a_description() -> None:
    effect, *others = REFERENCE.generated("dlio").split("\n\n| other ")
    assert set(re.findall(r"^\| `([\w.]+)` \| \S", effect, re.MULTILINE)) == KEYS.keys()
    assert re.findall(r"^\| `([\w.]+)` \| (\S.*?) \| \S", others[0], re.MULTILINE) == [
        (name, kind) for name, (kind, _) in NOT_FOLLOWED.items()
    ]
    assert set(re.findall(r"^\| `([\w.]+)` \| `", others[1], re.MULTILINE)) == SPELLINGS.keys()


def test_every_reading_and_shipped_workload_is_on_the_page() -> None:
    assert set(READINGS) <= WORDS
    families = [word.removesuffix("*") for word in WORDS if word.endswith("_*")]
    for name in shipped_names():
        assert name in WORDS or name.removesuffix("_zero3") in WORDS or name.startswith(tuple(families)), name
