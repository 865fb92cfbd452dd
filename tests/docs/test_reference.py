"""What the site has from the code: commands, tables, keys of --json, words."""

from __future__ import annotations

import re

import click
import pytest

from dxt_replay.profiler_merge.analysis.tables import COLUMNS, GROUPS, TABLES
from dxt_replay.replay.commands.main import COMMANDS, cli
from dxt_replay.replay.show.glossary import DURATIONS, WORDS
from dxt_replay.traces.paces import PACE_CHOICES
from tests.docs.reference import REFERENCE
from tests.places import ROOT
from tests.schemas import NAMES, schema


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of tables, without headings."""
    lines = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    assert lines
    return lines


def test_the_site_has_every_option_of_every_command() -> None:
    sections = re.split(r"^## dxt-replay ", REFERENCE.generated("commands"), flags=re.MULTILINE)[1:]
    assert [section.split("\n")[0] for section in sections] == list(COMMANDS)
    for name, section in zip(COMMANDS, sections, strict=True):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        found = rows(section) if options else []
        assert all(len(cells) == 2 and cells[1] for cells in found), name
        spellings = [re.findall(r"`(-[\w-]+)", cells[0]) for cells in found]
        assert spellings == [[*option.opts, *option.secondary_opts] for option in options]


def test_the_site_has_every_table_and_column() -> None:
    page = REFERENCE.generated("tables")
    assert set(re.findall(r"^### ([\w-]+)$", page, re.MULTILINE)) >= set(TABLES)
    columns = rows(page.partition("\n## Columns\n")[2].partition("\n## ")[0])
    assert {cells[0].strip("`"): cells[2] for cells in columns} == {
        column: COLUMNS[column].meaning for table in (*TABLES.values(), GROUPS) for column in table.columns
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_a_schema_is_explained_and_on_the_site(name: str) -> None:
    keys = REFERENCE.keys_of(schema(name))
    assert [key for key, about in keys.items() if not about.get("description")] == []
    title = schema(name)["title"].removeprefix("dxt-replay ")
    section = REFERENCE.generated("tables").partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    assert [cells[0].strip("`") for cells in rows(section)] == list(keys)


def test_the_key_pace_lists_the_paces() -> None:
    assert tuple(re.split(", | or ", schema("run")["properties"]["pace"]["description"])) == PACE_CHOICES


def test_the_site_has_every_word() -> None:
    assert set(re.findall(r"^- \*\*(.+)\*\*: .", REFERENCE.generated("glossary"), re.MULTILINE)) == set(WORDS)


def test_the_pages_name_what_has_the_same_without_the_site() -> None:
    for page, named in (("commands", "--help"), ("tables", "dxt_replay/schemas"), ("glossary", "dxt-replay report")):
        assert f"`{named}" in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").replace("COMMAND ", "`")
    assert REFERENCE.generated("README") == ""


def test_the_glossary_has_every_duration() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert [f"- **{name}**: {meaning}" for name, meaning in DURATIONS.items()] == re.findall(
        r"^- .+$", page, re.MULTILINE
    )
