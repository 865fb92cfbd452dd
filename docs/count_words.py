"""Counts the words of the pages by kind, in the order of _toc.yml: `make words`.

Pages are counted as they are written; what the site has from the code (`docs/reference.py`) stands apart.
"""

from __future__ import annotations

import re
from pathlib import Path

from reference import GENERATED, generated

FOLDER = Path(__file__).resolve().parent
TITLE, PAGE = re.compile(r"caption: (.+)"), re.compile(r"file: (\S+)")
BESIDE = "Beside the site"


def words(page: Path) -> int:
    """Words between blanks, as `wc -w` counts them."""
    return len(page.read_text(encoding="utf-8").split())


def words_by_kind() -> dict[str, dict[str, int]]:
    """By kind of page, the words of each page."""
    kinds: dict[str, dict[str, int]] = {}
    for line in (FOLDER / "_toc.yml").read_text(encoding="utf-8").splitlines():
        if (title := TITLE.search(line)) is not None:
            kinds[title[1]] = {}
        elif kinds and (page := PAGE.search(line)) is not None:
            kinds[next(reversed(kinds))][page[1]] = words(FOLDER / f"{page[1]}.md")
    beside = ("../README", "../ARCHITECTURE", "README")
    return {**kinds, BESIDE: {name: words(FOLDER / f"{name}.md") for name in beside}}


if __name__ == "__main__":
    by_kind = words_by_kind()
    for kind, pages in by_kind.items():
        print(f"{sum(pages.values()):7,} {kind}")
        for page, count in pages.items():
            print(f"{count:13,} {page}")
    print(f"{sum(sum(pages.values()) for pages in by_kind.values()):7,} together")
    made = {page: len(generated(page).split()) for page in GENERATED}
    print(f"{sum(made.values()):7,} made from the code: {', '.join(f'{page} {n:,}' for page, n in made.items())}")
