"""The pictures of the pages are those that their commands draw, and pages show no picture that is not there."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from types import ModuleType

import pytest

from tests.places import ROOT

DOCS = ROOT / "docs"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHOWN = [(page, target) for page in PAGES for target in re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)", page.read_text())]


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _apart(svg: str) -> tuple[str, list[float]]:
    """Text without numbers, and the numbers."""
    return NUMBER.sub("#", svg), [float(number) for number in NUMBER.findall(svg)]


def test_the_pictures_are_in_step_with_what_they_show() -> None:
    drawn = _module("write_pictures").pictures()
    assert sorted(drawn) == sorted(path.stem for path in (DOCS / "pictures").glob("*.svg"))
    for name, svg in drawn.items():
        kept_text, kept = _apart((DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8"))
        text, numbers = _apart(svg)
        assert text == kept_text, f"{name}: run `make pictures`"
        assert numbers == pytest.approx(kept, abs=0.6), f"{name}: run `make pictures`"  # other machines round otherwise


@pytest.mark.parametrize(("page", "target"), SHOWN, ids=lambda value: getattr(value, "name", value))
def test_a_shown_picture_is_sound_and_says_what_it_shows(page, target) -> None:  # type: ignore[no-untyped-def]
    root = ET.parse(page.parent / target).getroot()
    assert root.findtext("{http://www.w3.org/2000/svg}title")


def test_every_page_has_a_kind() -> None:
    counted = {page for pages in _module("count_words").words_by_kind().values() for page in pages}
    written = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert written <= counted
