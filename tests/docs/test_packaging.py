"""packaging/, .github/, setup.py and CITATION.cff: each parses, asks for what setup.cfg does, gives real commands."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.shell_completion import BashComplete

from dxt_replay.replay.commands.main import cli
from dxt_replay.traces.version import VERSION
from tests.places import ROOT

HOME = ROOT / "packaging"
JOBS, CI = sorted((HOME / "jobs").iterdir()), sorted((HOME / "ci").iterdir())
CONDA_NAMES = {"msgspec-python": "msgspec", "python-duckdb": "duckdb"}
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]


def _requirements() -> dict[str, str]:
    """Package -> lowest version, as setup.cfg has them, with the extras that the recipes always install."""
    lines = "\n".join(
        [SETUP["options"]["install_requires"], EXTRAS["hdf5"], EXTRAS["mpi"], EXTRAS["pandas"]]
    ).splitlines()
    return dict(line.partition(";")[0].split(">=") for line in lines if line)


def _commands(text: str) -> Iterator[list[str]]:
    """The words behind each `dxt-replay` that begins a command of a shell; variables of the shell stay as they are."""
    for line in re.findall(r"(?:^|[\s`/])dxt-replay ((?:doctor|[a-z]+ )[^`\n#|]*)", text.replace("\\\n", " "), re.M):
        try:
            yield shlex.split(line.partition("&&")[0])
        except ValueError:  # the end of a quotation of YAML or prose
            yield line.split()


def _parse(words: list[str]) -> None:
    """Take a command line apart with click, as the program does. Raises: click.UsageError."""
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, words[0]
    # The settings of `cli`: click keeps the help option that it makes for the first context of a command.
    command.make_context(words[0], words[1:], parent=click.Context(cli, info_name="dxt-replay", **cli.context_settings))


def _texts(value: object) -> str:
    """All strings of a document, one after the other."""
    if isinstance(value, (dict, list)):
        return "\n".join(map(_texts, value.values() if isinstance(value, dict) else value))
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(
    "path", [*JOBS, *CI, HOME / "conda/recipe.yaml", HOME / "Containerfile"], ids=lambda path: path.name
)
def test_every_command_and_option_exists(path: Path) -> None:
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


def test_every_command_of_a_page_exists() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
        for words in _commands(re.sub(r"^> ", "", "\n".join(blocks), flags=re.M)):
            _parse(words)


def test_an_option_that_does_not_exist_is_seen() -> None:
    with pytest.raises(click.UsageError):
        _parse(next(_commands("srun dxt-replay run a.capture --target t --no-such-option")))


def test_the_reframe_test_is_python_and_gives_real_options() -> None:
    text = (HOME / "reframe/file_system.py").read_text(encoding="utf-8")
    ast.parse(text)
    words = " ".join(re.findall(r'^ +f?"((?:regress|--cold) [^"]*)",$', text, re.M))
    _parse(shlex.split(words.partition(" >")[0].replace("{self.pairs}", "10")))
    assert "--json" in words
    assert "> regress.json" in words


def test_the_recipes_ask_for_what_the_package_asks_for() -> None:
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


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").iterdir()), ids=lambda path: path.name)
def test_an_issue_template_is_a_form(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert {"name", "url", "about"} == set(form["contact_links"][0])
        return
    assert {"name", "description", "body"} <= set(form)
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"])


def test_the_release_has_one_number_and_its_description_leads_to_files_of_the_tree() -> None:
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


@pytest.mark.parametrize(("words", "expected"), [("dxt-replay do", "doctor"), ("dxt-replay regress --rep", "--report")])
def test_commands_and_options_are_completed(words: str, expected: str) -> None:
    *before, last = words.split()[1:]
    found = BashComplete(cli, {}, "dxt-replay", "_DXT_REPLAY_COMPLETE").get_completions(before, last)
    assert expected in [each.value for each in found]
    page = (ROOT / "docs/installing.md").read_text(encoding="utf-8")
    assert re.findall(r"_DXT_REPLAY_COMPLETE=(\w+)_source dxt-replay", page) == ["bash", "zsh", "fish"]
