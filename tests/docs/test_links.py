"""Links between the pages lead to a file, and to a heading of it where they name one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.reference import REFERENCE
from tests.docs.test_sentences import prose
from tests.places import ROOT

PAGES = sorted(
    path
    for folder in ("", "docs", "docs/explain", "docs/tutorials", "packaging", ".github/ISSUE_TEMPLATE")
    for path in (ROOT / folder).glob("*.md")
)


def links(page: Path) -> list[str]:
    """Targets that are no addresses of other hosts."""
    found = re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text(encoding="utf-8")))
    return [target for target in found if not re.match(r"\w+:", target)]


def anchors(page: Path) -> set[str]:
    """What stands behind # for the headings of a page, as the site and the forge make it of them."""
    text = page.read_text(encoding="utf-8")
    if page.parent == ROOT / "docs":
        text += REFERENCE.generated(page.stem)
    headings = re.findall(r"^#+ (.+)$", _without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", prose(heading).lower()).replace(" ", "-") for heading in headings}


def _without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_pages_have_links() -> None:
    assert len(PAGES) > 40
    assert sum("#" in target for page in PAGES for target in links(page)) > 15
