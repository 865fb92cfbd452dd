"""The pages, and packaging/, setup.py and CITATION.cff: what they say is so, and what they type works.

What a fence of a page that is typed means:

    ```python            a first line `# NAME.py` makes the rest the file NAME.py
    ```console           `$ COMMAND` is typed, continued by lines `> ...`; the lines up to the next `$` are its output

`...` stands for any text, on a line of its own for any lines. After `<!-- figures vary -->` in the line
before a fence each number of the output may be any other.
"""

import ast
import configparser
import dataclasses
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import click
import pytest
import yaml

import dxt_replay
from docs import reference, write_pictures
from dxt_replay.profiler_merge.analysis.tables import COLUMNS, GROUPS, TABLES
from dxt_replay.replay.commands.face import stated
from dxt_replay.replay.commands.main import COMMANDS, cli
from dxt_replay.replay.jobs import JobSummary
from dxt_replay.replay.show.glossary import DURATIONS, WORDS
from dxt_replay.traces.paces import PACE_CHOICES, Pace
from dxt_replay.traces.version import VERSION
from dxt_replay.workloads.source import shipped_names
from dxt_replay.workloads.values import KEYS, NOT_FOLLOWED, SPELLINGS
from tests.places import PACKAGE, ROOT
from tests.schemas import NAMES, schema

DOCS = ROOT / "docs"
FOLDERS = (ROOT, DOCS, DOCS / "explain", ROOT / "packaging")
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for at in FOLDERS for path in at.glob("*.md")}
FIRST = (
    "README.md",
    *(f"docs/{name}.md" for name in ("README", "ten-minutes", "slow-training", "regression", "capacity")),
)
"""What a newcomer reads first: short sentences, and each word of the project explained before it is used."""


def _without_code(text):
    return re.sub(r"^ *```.*?^ *```$", "\n", text, flags=re.M | re.S)


def _prose(text):
    """The text of a page without code, tables, comments and targets of links."""
    text = re.sub(r"^\|.*$", "", re.sub(r"<!--.*?-->", "", _without_code(text), flags=re.S), flags=re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _rows(text):
    """The cells of all rows of tables, without headings."""
    return [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]


def _command(name):
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


# -- Names and links


def test_what_architecture_names_exists():
    """Below the root, a package, or a folder directly below one."""
    named = set(re.findall(r"`([\w/.]+(?:\.py|\.pyx|\.pxi|/))`", PAGES["ARCHITECTURE.md"]))
    packages = [PACKAGE / name for name in ("traces", "profiler_merge", "workloads", "replay")]
    places = [ROOT, PACKAGE, *packages, *(path for package in packages for path in package.iterdir())]
    assert len(named) > 30
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def _anchors(page):
    """What stands behind # for the headings of a page, as the site and the forge make it of them."""
    text = PAGES[page] + (reference.generated(page[5:-3]) if page.startswith("docs/") else "")
    headings = re.findall(r"^#+ (.+)$", _without_code(text), re.M)
    return {re.sub(r"[^\w\- ]", "", _prose(heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(((?!\w+:)[^)\s]+)\)", _without_code(PAGES[page])):
        name, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in _anchors(str(file.relative_to(ROOT))), target


def test_every_page_is_on_the_site_and_in_its_index():
    toc = yaml.safe_load((DOCS / "_toc.yml").read_text(encoding="utf-8"))
    entries = {entry["file"] for tree in toc["subtrees"] for entry in tree["entries"]}
    assert entries == {page[5:-3] for page in PAGES if page.startswith("docs/")} - {"README"}
    assert entries <= {link.removesuffix(".md") for link in re.findall(r"\]\((\S+?)\)", PAGES["docs/README.md"])}


# -- Pictures


def test_the_pictures_are_in_step_with_what_they_show():
    def apart(svg):
        number = re.compile(r"-?\d+(?:\.\d+)?")
        return number.sub("#", svg), [float(each) for each in number.findall(svg)]

    drawn = write_pictures.pictures()
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    assert sorted(drawn) == sorted(kept)
    for name, svg in drawn.items():
        text, numbers = apart(svg)
        assert text == apart(kept[name])[0], f"{name}: run `make pictures`"
        assert numbers == pytest.approx(apart(kept[name])[1], abs=0.6), name  # other machines round otherwise
        assert ET.fromstring(svg).findtext("{http://www.w3.org/2000/svg}title")
        assert any(f"pictures/{name}.svg)" in page for page in PAGES.values()), name


# -- Sentences


def _long(text):
    """Sentences, items and headings of more than 30 words; a colon ends one where a line or a list follows."""
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.?) |(?<=[.!?:])\s+(?=[A-Z`*(])|\n#+ ", text)
    return [part for part in parts if len(re.sub(r"`[^`]*`|\[default: .*?\]", "code", part).split()) > 30]


@pytest.mark.parametrize("page", FIRST)
def test_a_first_page_has_short_sentences_and_explains_its_words(page):
    assert _long(_prose(PAGES[page])) == []
    text = re.sub(r"`[^`]*`|^#.*$", "", _prose(PAGES[page]), flags=re.M)
    for word in ("capture", "twin", "lane"):
        first = re.search(rf"\*?\b{word}s?\b\*?", text, re.I)
        assert first is None or first[0].startswith("*"), text[max(first.start() - 80, 0) : first.end() + 20]


def test_no_sentence_of_a_help_text_is_long():
    commands = [_command(name) for name in COMMANDS]
    options = [option for command in commands for option in command.params if isinstance(option, click.Option)]
    assert [long for each in (*commands, *options) for long in _long(each.help or "")] == []


# -- Lists


def test_the_site_has_every_option_of_every_command():
    sections = re.split(r"^## dxt-replay ", reference.generated("commands"), flags=re.M)[1:]
    assert [section.split("\n")[0] for section in sections] == list(COMMANDS)
    for name, section in zip(COMMANDS, sections, strict=True):
        options = [each for each in _command(name).params if isinstance(each, click.Option) and not each.hidden]
        found = _rows(section)
        assert all(len(cells) == 2 and cells[1] for cells in found), name
        spelt = [re.findall(r"`(-[\w-]+)", cells[0]) for cells in found]
        assert spelt == [[*option.opts, *option.secondary_opts] for option in options]


def test_the_site_has_every_table_column_and_word():
    page = reference.generated("tables")
    assert set(re.findall(r"^### ([\w-]+)$", page, re.M)) >= set(TABLES)
    columns = _rows(page.partition("\n## Columns\n")[2].partition("\n## ")[0])
    assert {cells[0].strip("`"): cells[2] for cells in columns} == {
        column: COLUMNS[column].meaning for table in (*TABLES.values(), GROUPS) for column in table.columns
    }
    words = re.findall(r"^- \*\*(.+)\*\*: .", reference.generated("glossary"), re.M)
    assert set(words) == {*WORDS, *DURATIONS}


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_a_schema_is_explained_and_on_the_site(name):
    keys = reference.keys_of(schema(name))
    assert [key for key, about in keys.items() if not about.get("description")] == []
    title = schema(name)["title"].removeprefix("dxt-replay ")
    section = reference.generated("tables").partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    assert [cells[0].strip("`") for cells in _rows(section)] == list(keys)


def test_the_paces_are_those_of_the_readme_and_of_json():
    assert tuple(re.split(", | or ", schema("run")["properties"]["pace"]["description"])) == PACE_CHOICES
    rows = re.findall(r"^\| `(\w+)`(| \(default\)) \| (.*?) \|", PAGES["README.md"], re.M)
    default = stated(dxt_replay.run)["pace"].default
    listed = [(name, bool(mark), meaning) for name, mark, meaning in rows if name in PACE_CHOICES]
    assert listed == [(pace.value, pace.value == default, pace.meaning) for pace in Pace]


def test_every_public_name_is_documented_and_none_that_there_is_not():
    page, made = PAGES["docs/python.md"], reference.generated("python")
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


def test_the_page_of_logs_explains_every_column_in_its_order():
    columns = [each.name for each in dataclasses.fields(JobSummary)]
    said = PAGES["docs/archives.md"].partition("An\nempty cell")[2]
    assert re.findall(r"`(\w+)`", said)[: len(columns)] == columns


def test_the_site_has_every_key_of_a_description_and_every_shipped_workload():
    effect, *others = reference.generated("workloads").split("\n\n| other ")
    assert set(re.findall(r"^\| `([\w.]+)` \| \S", effect, re.M)) == KEYS.keys()
    assert re.findall(r"^\| `([\w.]+)` \| (\S.*?) \| \S", others[0], re.M) == [
        (name, kind) for name, (kind, _) in NOT_FOLLOWED.items()
    ]
    assert set(re.findall(r"^\| `([\w.]+)` \| `", others[1], re.M)) == SPELLINGS.keys()
    words = set(re.findall(r"`([^`\n]+)`", PAGES["docs/workloads.md"]))
    families = tuple(word.removesuffix("*") for word in words if word.endswith("_*"))
    for name in shipped_names():
        assert {name, name.removesuffix("_zero3")} & words or name.startswith(families), name


# ------------------------------------------------------------------------------------------------------------ packaging
HOME = ROOT / "packaging"
JOBS, CI = sorted((HOME / "jobs").iterdir()), sorted((HOME / "ci").iterdir())
CONDA_NAMES = {"msgspec-python": "msgspec", "python-duckdb": "duckdb"}
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]


def _requirements():
    """Package -> lowest version, as setup.cfg has them, with the extras that the recipes always install."""
    given = [SETUP["options"]["install_requires"], *(EXTRAS[name] for name in ("hdf5", "mpi", "pandas"))]
    return dict(line.partition(";")[0].split(">=") for text in given for line in text.splitlines() if line)


def _commands(text):
    """The words behind each `dxt-replay` that begins a command of a shell; variables of the shell stay as they are."""
    for line in re.findall(r"(?:^|[\s`/])dxt-replay ((?:doctor|[a-z]+ )[^`\n#|]*)", text.replace("\\\n", " "), re.M):
        try:
            yield shlex.split(line.partition("&&")[0])
        except ValueError:  # the end of a quotation of YAML or prose
            yield line.split()


def _parse(words):
    """Take a command line apart with click, as the program does. Raises: click.UsageError."""
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, words[0]
    # The settings of `cli`: click keeps the help option that it makes for the first context of a command.
    command.make_context(words[0], words[1:], parent=click.Context(cli, info_name="dxt-replay", **cli.context_settings))


def _texts(value):
    """All strings of a document, one after the other."""
    if isinstance(value, (dict, list)):
        return "\n".join(map(_texts, value.values() if isinstance(value, dict) else value))
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(
    "path", [*JOBS, *CI, HOME / "conda/recipe.yaml", HOME / "Containerfile"], ids=lambda path: path.name
)
def test_every_command_and_option_exists(path):
    text = path.read_text(encoding="utf-8")
    found = list(_commands(_texts(yaml.safe_load(text)) if path in CI else text))
    assert found
    for words in found:
        _parse(words)
    if path in JOBS:
        subprocess.run(["bash", "-n", path], check=True)
        assert [words[0] for words in found] == ["doctor", "stage", "run", "compare"]
    if path in CI:
        report = next(words[words.index("--report") + 1] for words in found if "--report" in words)
        assert re.search(rf"(report_paths|junit): {report}\n", text)


def test_every_command_of_a_page_exists():
    for text in PAGES.values():
        blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S)
        for words in _commands(re.sub(r"^> ", "", "\n".join(blocks), flags=re.M)):
            _parse(words)


def test_the_reframe_test_is_python_and_gives_real_options():
    text = (HOME / "reframe/file_system.py").read_text(encoding="utf-8")
    ast.parse(text)
    words = " ".join(re.findall(r'^ +f?"((?:regress|--cold) [^"]*)",$', text, re.M))
    _parse(shlex.split(words.partition(" >")[0].replace("{self.pairs}", "10")))
    assert "--json" in words
    assert "> regress.json" in words


def test_the_recipes_ask_for_what_the_package_asks_for():
    recipe = yaml.safe_load((HOME / "conda/recipe.yaml").read_text(encoding="utf-8"))
    entries = dict(line.split(" >=") for line in recipe["requirements"]["run"])
    assert entries.pop("python") == "3.10"
    assert {CONDA_NAMES.get(name, name): version for name, version in entries.items()} == _requirements()
    assert recipe["context"]["version"] == VERSION
    assert all((ROOT / file).is_file() for file in recipe["about"]["license_file"])
    (package,) = (
        node for node in ast.parse((HOME / "spack/package.py").read_text()).body if isinstance(node, ast.ClassDef)
    )
    calls = [node.value for node in package.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    told = [(ast.unparse(call.func), ast.literal_eval(call.args[0])) for call in calls]
    assert {name for function, name in told if function == "variant"} == {"mpi", "dask"}
    assert [name for function, name in told if function == "version"] == [VERSION]
    asked = dict(name.removeprefix("py-").split("@") for function, name in told
                 if function == "depends_on" and name.startswith("py-") and "@" in name)  # fmt: skip
    for name, version in _requirements().items():
        lowest, given = version.split("."), asked[name].rstrip(":").split(".")
        assert given == lowest or [*given, "0"] == lowest, name
    for node in ast.walk(package):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "program":
            _parse([ast.literal_eval(word) for word in node.args])
    container = (HOME / "Containerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"/source\[(\w+)\]", container)) <= set(EXTRAS)


def test_the_release_has_one_number_and_its_description_leads_to_files_of_the_tree():
    code = """
import setuptools, sys
setuptools.setup = lambda **given: print(given["url"], given["long_description"], sep="\\n")
import Cython.Build
Cython.Build.cythonize = lambda *_, **__: []
exec(compile(open("setup.py").read(), "setup.py", "exec"), {"__file__": "setup.py", "__name__": "__main__"})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    home, _, text = done.stdout.partition("\n")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    ours = [target.removeprefix(f"{home}/blob/main/") for target in targets if target.startswith(home)]
    assert "docs/python.md" in ours
    assert all((ROOT / target.partition("#")[0]).is_file() for target in ours)
    assert all(target.startswith("https://") for target in targets)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    releases = re.findall(r"^## (\S+)(?: \((\S+)\))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert releases[:2] == [("Unreleased", ""), (VERSION, str(citation["date-released"]))]
    assert (citation["version"], citation["repository-code"]) == (VERSION, home)


def test_the_page_switches_completion_on_in_each_shell():
    found = re.findall(r"_DXT_REPLAY_COMPLETE=(\w+)_source dxt-replay", PAGES["docs/installing.md"])
    assert found == ["bash", "zsh", "fish"]


# ------------------------------------------------------------------------------------------------- pages that are typed
FENCE = re.compile(r"^(<!-- figures vary -->\n)?```(console|python)\n(.*?)^```$", re.M | re.S)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("DXT_REPLAY_", "COLUMNS"))},
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "COLUMNS": "80",
    "DXT_REPLAY_RUN_SPEED": "5",
}
"""Replays, that of `demo` too, take a fifth of their time."""
AT_SPEED = re.compile(r", [\d.]+ m?s\s+at\s+this\s+speed\),\s+")
TRACES = shutil.which("strace") is not None and not subprocess.run(["strace", "-o", os.devnull, "true"]).returncode
STRACE = pytest.mark.skipif(not TRACES, reason="needs strace, and the right to trace")
PYTORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None or not TRACES, reason="needs PyTorch and strace")


def is_shown(actual, expected, vary):
    """Whether the output is the one that the page shows."""

    def plain(text):
        text = "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.strip("\n").split("\n"))
        return re.sub(r"\d[\d,]*(\.\d+)?", "0", text) if vary else text

    pattern = re.escape(re.sub(r"^\.\.\.$", "\0", plain(expected), flags=re.M).replace("...", "\0"))
    return re.fullmatch(pattern.replace("\0", ".*"), plain(actual), re.S) is not None


def differing(page, folder):
    """Type a page in a folder: each command that fails, or prints otherwise than the page says."""
    for vary, kind, text in FENCE.findall(page):
        if kind == "python":
            first, _, rest = text.partition("\n")
            if (name := re.fullmatch(r"# (\w+\.py)", first)) is not None:
                (folder / name[1]).write_text(rest, encoding="utf-8")
            continue
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, lines = part.split("\n", 1)
            while lines.startswith("> "):
                more, lines = lines[2:].split("\n", 1)
                command += "\n" + more
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            done = subprocess.run(["bash", "-c", command], cwd=folder, env=ENVIRONMENT, **streams)
            if done.returncode or not is_shown(AT_SPEED.sub("), ", done.stdout), lines, bool(vary)):
                yield f"$ {command}\n{lines}\n-- got:\n{done.stdout}(exit status {done.returncode})"


@pytest.mark.parametrize(
    "name",
    [
        "ten-minutes",
        "capacity",
        pytest.param("slow-training", marks=PYTORCH),
        pytest.param("regression", marks=[STRACE, pytest.mark.slow]),  # 33 real replays, of which strace slows 7
    ],
)
def test_a_reader_sees_what_the_page_shows(tmp_path, name):
    assert not "\n".join(differing(PAGES[f"docs/{name}.md"], tmp_path))


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("```console\n$ false\n```\n", 1),
        ("<!-- figures vary -->\n```console\n$ echo 7 of 3; echo in 2 s\n8 of 1\n...\n```\n", 0),
        ("```console\n$ echo 7 of 3\n7 of ... files\n```\n", 1),
    ],
)
def test_a_difference_is_seen_unless_the_page_allows_it(tmp_path, page, wrong):
    assert len(list(differing(page, tmp_path))) == wrong


def test_the_example_is_short_uses_the_public_interface_alone_and_runs(tmp_path):
    example = DOCS / "example_notebook.py"
    lines = example.read_text(encoding="utf-8").splitlines()
    imported = {re.split(r"[ .]", line)[1] for line in lines if line.startswith(("import ", "from "))}
    assert (len(lines) <= 40, imported) == (True, {"tempfile", "dxt_replay"})
    (tmp_path / "dxt_replay").symlink_to(ROOT / "src" / "dxt_replay")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for said in ("2 ranks, 700 operations", "580 reads of 131 MB", "staged 8 files", "the same operations: True"):
        assert said in done.stdout
