"""What a newcomer reads first is short and says its words: README, tutorials and the help of each command."""

from __future__ import annotations

import re

import click
import pytest

from dxt_replay.replay.commands.main import COMMANDS, cli
from tests.places import ROOT

MOST_WORDS = 30
# Words with a meaning of this project. A page puts each in *emphasis* where it explains it, before it uses it.
HOUSE_WORDS = ("capture", "twin", "lane")
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "tutorials").glob("*.md"))]


def prose(page: str) -> str:
    """The text of a page without code, tables, comments and targets of links."""
    page = re.sub(r"^ *```.*?^ *```$", "\n", page, flags=re.M | re.S)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.S)
    page = re.sub(r"^\|.*$", "", page, flags=re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)


def sentences(text: str) -> list[str]:
    """Sentences, items of lists and headings; a colon ends a sentence where a line or a list follows."""
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.?) |(?<=[.!?:])\s+(?=[A-Z`*(])|\n#+ ", text)
    return [" ".join(part.split()) for part in parts if part.strip()]


def _words(sentence: str) -> int:
    return len(re.sub(r"`[^`]*`|\[default: .*?\]", "code", sentence).split())


def long_sentences(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if _words(sentence) > MOST_WORDS]


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_of_a_first_page_is_long(page: str) -> None:
    assert long_sentences(prose((ROOT / page).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_no_sentence_of_a_help_text_is_long(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    texts = [command.help or "", *(option.help or "" for option in command.params if isinstance(option, click.Option))]
    assert [sentence for text in texts for sentence in long_sentences(text)] == []


@pytest.mark.parametrize("word", HOUSE_WORDS)
@pytest.mark.parametrize("page", PAGES)
def test_a_word_of_the_project_is_explained_before_it_is_used(page: str, word: str) -> None:
    text = re.sub(r"`[^`]*`", "", prose((ROOT / page).read_text(encoding="utf-8")))
    first = re.search(rf"\*?\b{word}s?\b\*?", text, re.I)
    assert first is None or first[0].startswith("*"), text[max(first.start() - 80, 0) : first.end() + 20]


def test_a_long_sentence_is_found() -> None:
    assert long_sentences("Short one. " + "Word " * 31 + "end.") == ["Word " * 31 + "end."]
    assert long_sentences(prose("```\n" + "word " * 40 + "\n```\n")) == []
