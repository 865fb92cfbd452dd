"""The pages: names, links, pictures, sentences and lists in them are those of the code."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from types import ModuleType

import click
import pytest
import yaml

import dxt_replay
from dxt_replay.profiler_merge.analysis.tables import COLUMNS, GROUPS, TABLES
from dxt_replay.replay.commands.face import stated
from dxt_replay.replay.commands.main import COMMANDS, cli
from dxt_replay.replay.jobs import JobSummary
from dxt_replay.replay.show.glossary import DURATIONS, WORDS
from dxt_replay.traces.paces import PACE_CHOICES, Pace
from dxt_replay.workloads.source import shipped_names
from dxt_replay.workloads.values import KEYS, NOT_FOLLOWED, SPELLINGS
from tests.places import PACKAGE, ROOT
from tests.schemas import NAMES, schema

DOCS = ROOT / "docs"
FOLDERS = (ROOT, DOCS, DOCS / "explain", ROOT / "packaging", ROOT / ".github/ISSUE_TEMPLATE")
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for at in FOLDERS for path in at.glob("*.md")}
FIRST = (
    "README.md",
    *(f"docs/{name}.md" for name in ("README", "ten-minutes", "slow-training", "regression", "capacity")),
)
"""What a newcomer reads first: short sentences, and each word of the project explained before it is used."""


def _module(name: str) -> ModuleType:
    """A program of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = _module("reference")


def _without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "\n", text, flags=re.M | re.S)


def _prose(text: str) -> str:
    """The text of a page without code, tables, comments and targets of links."""
    text = re.sub(r"^\|.*$", "", re.sub(r"<!--.*?-->", "", _without_code(text), flags=re.S), flags=re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _rows(text: str) -> list[list[str]]:
    """The cells of all rows of tables, without headings."""
    return [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


# Names and links


def test_what_architecture_names_exists() -> None:
    named = set(re.findall(r"`([\w/.]+(?:\.py|\.pyx|\.pxi|/))`", PAGES["ARCHITECTURE.md"]))
    packages = (
        "",
        *(part for folder in ("traces", "profiler_merge", "workloads", "replay") for part in _packages(folder)),
    )
    assert len(named) > 30
    assert [name for name in named if not any((PACKAGE / at / name).exists() for at in packages)
            and not (ROOT / name).exists()] == []  # fmt: skip


def _packages(folder: str) -> list[str]:
    """A folder and those directly below it: what a name of ARCHITECTURE.md may be relative to."""
    return [folder, *(f"{folder}/{path.name}" for path in (PACKAGE / folder).iterdir() if path.is_dir())]


def _anchors(page: str) -> set[str]:
    """What stands behind # for the headings of a page, as the site and the forge make it of them."""
    text = PAGES[page] + (REFERENCE.generated(page[5:-3]) if page.startswith("docs/") else "")
    headings = re.findall(r"^#+ (.+)$", _without_code(text), re.M)
    return {re.sub(r"[^\w\- ]", "", _prose(heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    for target in re.findall(r"\]\(((?!\w+:)[^)\s]+)\)", _without_code(PAGES[page])):
        name, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in _anchors(str(file.relative_to(ROOT))), target


def test_every_page_is_on_the_site_and_in_its_index() -> None:
    toc = yaml.safe_load((DOCS / "_toc.yml").read_text(encoding="utf-8"))
    entries = {entry["file"] for tree in toc["subtrees"] for entry in tree["entries"]}
    assert entries == {page[5:-3] for page in PAGES if page.startswith("docs/")} - {"README"}
    assert entries <= {link.removesuffix(".md") for link in re.findall(r"\]\((\S+?)\)", PAGES["docs/README.md"])}


# Pictures


def test_the_pictures_are_in_step_with_what_they_show() -> None:
    def apart(svg: str) -> tuple[str, list[float]]:
        number = re.compile(r"-?\d+(?:\.\d+)?")
        return number.sub("#", svg), [float(each) for each in number.findall(svg)]

    drawn = _module("write_pictures").pictures()
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    assert sorted(drawn) == sorted(kept)
    for name, svg in drawn.items():
        text, numbers = apart(svg)
        assert text == apart(kept[name])[0], f"{name}: run `make pictures`"
        assert numbers == pytest.approx(apart(kept[name])[1], abs=0.6), name  # other machines round otherwise
        assert ET.fromstring(svg).findtext("{http://www.w3.org/2000/svg}title")
        assert any(f"pictures/{name}.svg)" in page for page in PAGES.values()), name


# Sentences


def _long(text: str) -> list[str]:
    """Sentences, items and headings of more than 30 words; a colon ends one where a line or a list follows."""
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.?) |(?<=[.!?:])\s+(?=[A-Z`*(])|\n#+ ", text)
    return [part for part in parts if len(re.sub(r"`[^`]*`|\[default: .*?\]", "code", part).split()) > 30]


@pytest.mark.parametrize("page", FIRST)
def test_a_first_page_has_short_sentences_and_explains_its_words(page: str) -> None:
    assert _long(_prose(PAGES[page])) == []
    text = re.sub(r"`[^`]*`|^#.*$", "", _prose(PAGES[page]), flags=re.M)
    for word in ("capture", "twin", "lane"):
        first = re.search(rf"\*?\b{word}s?\b\*?", text, re.I)
        assert first is None or first[0].startswith("*"), text[max(first.start() - 80, 0) : first.end() + 20]


def test_no_sentence_of_a_help_text_is_long() -> None:
    commands = [_command(name) for name in COMMANDS]
    options = [option for command in commands for option in command.params if isinstance(option, click.Option)]
    assert [long for each in (*commands, *options) for long in _long(each.help or "")] == []
    assert _long("Short one. " + "Word " * 31 + "end.") == ["Word " * 31 + "end."]


# Lists


def test_the_site_has_every_option_of_every_command() -> None:
    sections = re.split(r"^## dxt-replay ", REFERENCE.generated("commands"), flags=re.M)[1:]
    assert [section.split("\n")[0] for section in sections] == list(COMMANDS)
    for name, section in zip(COMMANDS, sections, strict=True):
        options = [each for each in _command(name).params if isinstance(each, click.Option) and not each.hidden]
        found = _rows(section)
        assert all(len(cells) == 2 and cells[1] for cells in found), name
        spelt = [re.findall(r"`(-[\w-]+)", cells[0]) for cells in found]
        assert spelt == [[*option.opts, *option.secondary_opts] for option in options]


def test_the_site_has_every_table_column_and_word() -> None:
    page = REFERENCE.generated("tables")
    assert set(re.findall(r"^### ([\w-]+)$", page, re.M)) >= set(TABLES)
    columns = _rows(page.partition("\n## Columns\n")[2].partition("\n## ")[0])
    assert {cells[0].strip("`"): cells[2] for cells in columns} == {
        column: COLUMNS[column].meaning for table in (*TABLES.values(), GROUPS) for column in table.columns
    }
    words = re.findall(r"^- \*\*(.+)\*\*: .", REFERENCE.generated("glossary"), re.M)
    assert set(words) == {*WORDS, *DURATIONS}


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_a_schema_is_explained_and_on_the_site(name: str) -> None:
    keys = REFERENCE.keys_of(schema(name))
    assert [key for key, about in keys.items() if not about.get("description")] == []
    title = schema(name)["title"].removeprefix("dxt-replay ")
    section = REFERENCE.generated("tables").partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    assert [cells[0].strip("`") for cells in _rows(section)] == list(keys)


def test_the_paces_are_those_of_the_readme_and_of_json() -> None:
    assert tuple(re.split(", | or ", schema("run")["properties"]["pace"]["description"])) == PACE_CHOICES
    rows = re.findall(r"^\| `(\w+)`(| \(default\)) \| (.*?) \|", PAGES["README.md"], re.M)
    default = stated(dxt_replay.run)["pace"].default
    listed = [(name, bool(mark), meaning) for name, mark, meaning in rows if name in PACE_CHOICES]
    assert listed == [(pace.value, pace.value == default, pace.meaning) for pace in Pace]


def test_every_public_name_is_documented_and_none_that_there_is_not() -> None:
    page, made = PAGES["docs/python.md"], REFERENCE.generated("python")
    words = {re.match(r"\w*", text).group() for text in re.findall(r"`([^`\n]+)`", page)}  # type: ignore[union-attr]
    described = set(re.findall(r"^### (\w+)\n\n```python\n.+\n```\n\n\S", made, re.M))
    public = set(dxt_replay.__all__)
    assert public <= words | described
    assert {name for name in public if name.islower()} <= words & described
    assert {*dxt_replay.FIGURES, *dxt_replay.FORMATS, *set(dxt_replay.TABLES) - set(TABLES)} <= set(
        re.findall(r"`([\w-]+)`", page)
    )
    called = {name for page in PAGES.values() for name in re.findall(r"dxt_replay\.(\w+)\(", page)}
    assert called <= public
    assert "timeline(capture, *, bin=None, bins=None, per_rank=False, executor=None) -> Timeline\n" in made


def test_the_page_of_logs_explains_every_column_in_its_order() -> None:
    columns = [each.name for each in dataclasses.fields(JobSummary)]
    said = PAGES["docs/archives.md"].partition("An\nempty cell")[2]
    assert re.findall(r"`(\w+)`", said)[: len(columns)] == columns


def test_the_site_has_every_key_of_a_description_and_every_shipped_workload() -> None:
    effect, *others = REFERENCE.generated("workloads").split("\n\n| other ")
    assert set(re.findall(r"^\| `([\w.]+)` \| \S", effect, re.M)) == KEYS.keys()
    assert re.findall(r"^\| `([\w.]+)` \| (\S.*?) \| \S", others[0], re.M) == [
        (name, kind) for name, (kind, _) in NOT_FOLLOWED.items()
    ]
    assert set(re.findall(r"^\| `([\w.]+)` \| `", others[1], re.M)) == SPELLINGS.keys()
    words = set(re.findall(r"`([^`\n]+)`", PAGES["docs/workloads.md"]))
    families = tuple(word.removesuffix("*") for word in words if word.endswith("_*"))
    for name in shipped_names():
        assert {name, name.removesuffix("_zero3")} & words or name.startswith(families), name
