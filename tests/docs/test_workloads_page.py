"""docs/dlio.md names every key of a description, docs/workloads.md every shipped workload."""

from __future__ import annotations

import re

from dxt_replay.workloads.description import READINGS
from dxt_replay.workloads.keys import KEYS, NOT_FOLLOWED
from dxt_replay.workloads.workload_source import shipped_names
from tests.places import ROOT

PAGE = "\n\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("dlio", "workloads"))
WORDS = set(re.findall(r"`([^`\n]+)`", PAGE))


def keys_of_the_page() -> set[str]:
    """The names in the table of the keys with an effect, with their sections."""
    table = PAGE.partition("| section | keys with an effect |")[2].partition("\n\n")[0]
    found = set()
    for line in table.splitlines()[2:]:
        _, sections, keys, _ = line.split("|")
        section = next(iter(re.findall(r"`(\w+)`", sections)), "")
        found |= {f"{section}.{key}".lstrip(".") for key in re.findall(r"`([\w.]+)`", keys)}
    return found


def test_the_table_has_just_the_keys_of_a_description() -> None:
    assert keys_of_the_page() - {"workflow.stage"} == KEYS.keys()


def test_every_key_that_is_not_followed_is_on_the_page() -> None:
    for name, (kind, _) in NOT_FOLLOWED.items():
        assert kind == "not I/O" or name in WORDS or name.partition(".")[2] in WORDS, name


def test_every_reading_and_shipped_workload_is_on_the_page() -> None:
    assert set(READINGS) <= WORDS
    families = [word.removesuffix("*") for word in WORDS if word.endswith("_*")]
    for name in shipped_names():
        assert name in WORDS or name.removesuffix("_zero3") in WORDS or name.startswith(tuple(families)), name
