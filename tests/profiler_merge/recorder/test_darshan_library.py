"""Each place in which Darshan's library is looked for, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder.darshan_library import find_library, run_tool


def library(prefix: Path, folder: str = "lib") -> Path:
    path = prefix / folder / "libdarshan.so"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


class Tools:
    """Commands of tools and what they print."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    def __call__(self, words: Sequence[str]) -> str:
        line = " ".join(words)
        return next((text for start, text in self._answers.items() if line.startswith(start)), "")


def find(environment: Mapping[str, str], answers: Mapping[str, str] | None = None, prefixes: Sequence[str] = ()):
    return find_library({"PATH": "/nowhere", **environment}, run=Tools(answers or {}), prefixes=prefixes)


def test_none_is_found_where_there_is_none() -> None:
    assert find({}) is None


@pytest.mark.parametrize("variable", ["DARSHAN_RUNTIME_DIR", "DARSHAN_ROOT", "EBROOTDARSHANMINRUNTIME", "CONDA_PREFIX"])
def test_a_variable_names_the_prefix(tmp_path: Path, variable: str) -> None:
    path = library(tmp_path, "lib64")
    found = find({variable: str(tmp_path)})
    assert found is not None
    assert (found.path, found.origin) == (path, variable)


def test_what_is_preloaded_already_comes_first(tmp_path: Path) -> None:
    first, second = library(tmp_path / "a"), library(tmp_path / "b")
    found = find({"LD_PRELOAD": f"/lib/other.so:{first}", "DARSHAN_ROOT": str(second.parents[1])})
    assert found is not None
    assert found.path == first


def test_the_search_path_and_darshan_config_are_followed(tmp_path: Path) -> None:
    path = library(tmp_path)
    assert find({"LD_LIBRARY_PATH": f"/none:{path.parent}"}).path == path
    program = tmp_path / "bin" / "darshan-config"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    assert find({"PATH": str(program.parent)}).path == path


def test_tools_are_asked(tmp_path: Path) -> None:
    path = library(tmp_path)
    ldconfig = f"2 libs found\n\tlibdarshan.so.0 (libc6,x86-64) => {path}\n"
    module = f"HOME=/root\nDARSHAN_RUNTIME_DIR={tmp_path}\nBASH_FUNC_module%%=() {{ eval x\n}}\n"
    for answers, origin in (
        ({"pkg-config": f"{path.parent}\n"}, "pkg-config"),
        ({"ldconfig": ldconfig}, "cache"),
        ({"spack location": f"{tmp_path}\n"}, "spack"),
        ({"bash -lc module load darshan ": module}, "module load darshan"),
    ):
        found = find({"MODULEPATH": "/modules"}, answers)
        assert found is not None, origin
        assert found.path == path
        assert origin in found.origin


def test_modules_are_asked_only_where_there_are_modules(tmp_path: Path) -> None:
    library(tmp_path)
    assert find({}, {"bash -lc module load darshan ": f"DARSHAN_RUNTIME_DIR={tmp_path}\n"}) is None


def test_habitual_places_are_globs_and_the_newest_name_wins(tmp_path: Path) -> None:
    library(tmp_path / "darshan-3.4.0")
    newest = library(tmp_path / "darshan-3.5.0")
    assert find({}, prefixes=[f"{tmp_path}/darshan*"]).path == newest


def test_a_tool_that_is_absent_or_fails_says_nothing() -> None:
    assert run_tool(["no-such-tool-at-all"]) == ""
    assert run_tool(["false"]) == ""
    assert run_tool(["echo", "yes"]) == "yes\n"
