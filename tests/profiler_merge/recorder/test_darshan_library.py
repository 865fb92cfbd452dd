"""Each place in which Darshan's library is looked for, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder.darshan import find_library


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


def find(environment: Mapping[str, str], answers: Mapping[str, str] | None = None):
    return find_library({"PATH": "/nowhere", **environment}, run=Tools(answers or {}))


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


def test_the_cache_of_the_loader_is_asked(tmp_path: Path) -> None:
    path = library(tmp_path)
    found = find({}, {"ldconfig": f"2 libs found\n\tlibdarshan.so.0 (libc6,x86-64) => {path}\n"})
    assert found is not None
    assert (found.path, found.origin) == (path, "the loader's cache (ldconfig -p)")
