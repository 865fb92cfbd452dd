"""ARCHITECTURE.md names only folders and modules that exist."""

import re

import pytest

from tests.places import PACKAGE, ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/.]+(?:\.py|\.pyx|/))`", TEXT)))
PACKAGES = (
    "",
    "traces",
    "profiler_merge",
    "replay",
    "workloads",
    "replay/show",
    "replay/compare",
    "replay/causal",
    "replay/commands",
    "replay/target",
)


def test_modules_are_named() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_exists(name: str) -> None:
    assert any((root / package / name).exists() for root in (ROOT, PACKAGE) for package in PACKAGES)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
