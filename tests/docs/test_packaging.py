"""The recipes and scripts of packaging/: each parses, asks for what setup.cfg asks for, and gives real commands."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from dxt_replay.replay.commands.main import cli
from dxt_replay.traces.version import VERSION
from tests.places import ROOT

HOME = ROOT / "packaging"
JOBS = sorted((HOME / "jobs").iterdir())
WITH_COMMANDS = [*JOBS, *sorted((HOME / "ci").iterdir()), HOME / "conda/recipe.yaml", HOME / "Containerfile"]

CONDA_NAMES = {"msgspec-python": "msgspec", "python-duckdb": "duckdb"}
NOT_IN_CONDA: set[str] = set()
"""pydarshan is not in conda-forge under this name; it is optional."""

EXTRAS = ("hdf5", "mpi", "pandas")
"""Extras of setup.cfg that the recipes always install."""


def requirements() -> dict[str, str]:
    """Package -> lowest version, as setup.cfg has them, with those of `EXTRAS`."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    lines = "\n".join([config["options"]["install_requires"], *(extras[name] for name in EXTRAS)]).splitlines()
    return dict(line.partition(";")[0].split(">=") for line in lines if line)


def commands(text: str) -> Iterator[list[str]]:
    """The words behind each `dxt-replay` that begins a command of a shell; variables of the shell stay as they are."""
    joined = text.replace("\\\n", " ")
    for line in re.findall(r"(?:^|[\s`/])dxt-replay ((?:doctor|[a-z]+ )[^`\n#|]*)", joined, re.MULTILINE):
        try:
            yield shlex.split(line.partition("&&")[0])
        except ValueError:  # the end of a quotation of YAML or prose
            yield line.split()


def parse(words: list[str]) -> None:
    """Take a command line apart with click, as the program does. Raises: click.UsageError."""
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, words[0]
    # The settings of `cli`: click keeps the help option that it makes for the first context of a command.
    program = click.Context(cli, info_name="dxt-replay", **cli.context_settings)
    command.make_context(words[0], words[1:], parent=program)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_job_script_is_shell_and_does_the_whole_job(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)
    assert [words[0] for words in commands(path.read_text())] == ["doctor", "stage", "run", "compare"]


@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: path.name)
def test_every_command_and_option_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.parent.name == "ci":
        text = "\n".join(_texts(yaml.safe_load(text)))
    found = list(commands(text))
    assert found
    for words in found:
        parse(words)


def test_an_option_that_does_not_exist_is_seen() -> None:
    with pytest.raises(click.UsageError):
        parse(next(commands("srun dxt-replay run a.capture --target t --no-such-option")))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def test_the_reframe_test_is_python_and_gives_real_options() -> None:
    text = (HOME / "reframe/file_system.py").read_text(encoding="utf-8")
    ast.parse(text)
    words = " ".join(re.findall(r'^ +f?"((?:regress|--cold) [^"]*)",$', text, re.MULTILINE))
    parse(shlex.split(words.partition(" >")[0].replace("{self.pairs}", "10")))
    assert "--json" in words
    assert "> regress.json" in words


@pytest.mark.parametrize(("name", "wanted"), [("github-actions.yml", "report_paths"), ("gitlab-ci.yml", "junit")])
def test_a_ci_job_shows_the_junit_file_that_regress_writes(name: str, wanted: str) -> None:
    text = (HOME / "ci" / name).read_text(encoding="utf-8")
    written = next(
        words for words in map(list, commands("\n".join(_texts(yaml.safe_load(text))))) if "--report" in words
    )
    shown = re.search(rf"{wanted}: (\S+)", text)
    assert shown is not None
    assert shown[1] == written[written.index("--report") + 1]


def test_the_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = yaml.safe_load((HOME / "conda/recipe.yaml").read_text(encoding="utf-8"))
    entries = dict(line.split(" >=") for line in recipe["requirements"]["run"])
    assert entries.pop("python") == "3.10"
    asked = {CONDA_NAMES.get(name, name): version for name, version in entries.items()}
    assert asked == {name: version for name, version in requirements().items() if name not in NOT_IN_CONDA}
    assert recipe["context"]["version"] == VERSION
    assert all((ROOT / file).is_file() for file in recipe["about"]["license_file"])


def test_the_spack_recipe_is_a_package_that_asks_for_what_the_package_asks_for() -> None:
    tree = ast.parse((HOME / "spack/package.py").read_text(encoding="utf-8"))
    (package,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    assert package.name == "PyDxtReplay"
    calls = [node.value for node in package.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    told = [(ast.unparse(call.func), ast.literal_eval(call.args[0])) for call in calls]
    assert {name for function, name in told if function == "variant"} == {"mpi", "dask"}
    assert [name for function, name in told if function == "version"] == [VERSION]
    asked = dict(name.removeprefix("py-").split("@") for function, name in told
                 if function == "depends_on" and name.startswith("py-") and "@" in name)  # fmt: skip
    for name, version in requirements().items():
        lowest, given = version.split("."), asked[name].rstrip(":").split(".")
        assert given == lowest or [*given, "0"] == lowest, name
    for node in ast.walk(package):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "program":
            parse([ast.literal_eval(word) for word in node.args])


def test_the_container_copies_what_is_here_and_installs_an_extra_that_exists() -> None:
    text = (HOME / "Containerfile").read_text(encoding="utf-8")
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = re.findall(r"/source\[(\w+)\]", text)
    assert extras
    assert all(extra in config["options.extras_require"] for extra in extras)
    words = {line.split()[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert words <= {"FROM", "RUN", "COPY", "ENV", "ENTRYPOINT", "CMD"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").iterdir()), ids=lambda path: path.name)
def test_an_issue_template_is_a_form(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert {"name", "url", "about"} == set(form["contact_links"][0])
        return
    assert {"name", "description", "body"} <= set(form)
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)
    assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"])


def test_the_citation_is_yaml_with_the_keys_that_its_format_demands() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str) -> None:
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    text = completion(cli, {}, "dxt-replay", "_DXT_REPLAY_COMPLETE").source()
    assert f"_DXT_REPLAY_COMPLETE={shell}_complete" in text
    page = (ROOT / "docs/installing.md").read_text(encoding="utf-8")
    assert f"_DXT_REPLAY_COMPLETE={shell}_source dxt-replay" in page


@pytest.mark.parametrize(("words", "expected"), [("dxt-replay do", "doctor"), ("dxt-replay regress --rep", "--report")])
def test_commands_and_options_are_completed(words: str, expected: str) -> None:
    from click.shell_completion import BashComplete

    *before, last = words.split()[1:]
    found = BashComplete(cli, {}, "dxt-replay", "_DXT_REPLAY_COMPLETE").get_completions(before, last)
    assert expected in [each.value for each in found]
