"""Counts the words of the pages by kind, in the order of _toc.yml: `make words`."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TITLE, PAGE = re.compile(r"caption: (.+)"), re.compile(r"file: (\S+)")


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
            kinds[title_of_last(kinds)][page[1]] = words(FOLDER / f"{page[1]}.md")
    return kinds


def title_of_last(kinds: dict[str, dict[str, int]]) -> str:
    """The kind that was met last."""
    return next(reversed(kinds))


if __name__ == "__main__":
    by_kind = words_by_kind()
    for kind, pages in by_kind.items():
        print(f"{sum(pages.values()):7,} {kind}")
        for page, count in pages.items():
            print(f"{count:13,} {page}")
    print(f"{sum(sum(pages.values()) for pages in by_kind.values()):7,} together")
