"""Where Darshan's library is looked for, and the configuration that `record` writes for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder import darshan
from dxt_replay.profiler_merge.recorder.darshan import config_text, data_places, find_library, needs_include

GIB = 1 << 30


def library(prefix: Path, folder: str = "lib") -> Path:
    path = prefix / folder / "libdarshan.so"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def find(environment: Mapping[str, str], ldconfig: str = "") -> tuple[Path, str] | None:
    """`ldconfig`: what that tool prints."""
    found = find_library({"PATH": "/nowhere", **environment}, run=lambda words: ldconfig * (words[0] == "ldconfig"))
    return None if found is None else (found.path, found.origin)


@pytest.mark.parametrize("variable", ["DARSHAN_RUNTIME_DIR", "DARSHAN_ROOT", "EBROOTDARSHANMINRUNTIME", "CONDA_PREFIX"])
def test_a_variable_names_the_prefix_of_the_library(tmp_path: Path, variable: str) -> None:
    path = library(tmp_path, "lib64")
    assert find({variable: str(tmp_path)}) == (path, variable)


def test_the_library_is_looked_for_in_other_places(tmp_path: Path) -> None:
    assert find({}) is None
    first, second = library(tmp_path / "a"), library(tmp_path / "b")
    preloaded = {"LD_PRELOAD": f"/lib/other.so:{first}", "DARSHAN_ROOT": str(second.parents[1])}
    assert find(preloaded) == (first, "LD_PRELOAD")
    assert find({"LD_LIBRARY_PATH": f"/none:{first.parent}"}) == (first, "LD_LIBRARY_PATH")
    program = tmp_path / "a" / "bin" / "darshan-config"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    assert find({"PATH": str(program.parent)}) == (first, str(program))
    cache = f"2 libs found\n\tlibdarshan.so.0 (libc6,x86-64) => {second}\n"
    assert find({}, cache) == (second, "the loader's cache (ldconfig -p)")


@pytest.mark.parametrize(("free", "mib"), [(None, 64), (GIB, 32), (3 * GIB, 32), (4 * GIB, 64), (1000 * GIB, 64)])
def test_the_memory_of_a_trace_is_a_part_of_what_is_free(free: int | None, mib: int) -> None:
    assert darshan.dxt_memory_mib(free) == mib


def test_the_file_gives_dxt_its_memory_and_the_region_room_for_it() -> None:
    text = config_text(128)
    lines = dict(line.split(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert "MAX_RECORDS 131072 DXT_POSIX,DXT_MPIIO\n" in text
    assert int(lines["MODMEM"]) >= 128 * 8 // 40 + 46  # compressed segments, and 65,536 records of 728 bytes


def matches(key: str, text: str, include: list[str] | None = None) -> bool:
    """Whether a regular expression of the lines with this key fits, divided as Darshan divides them."""
    lines = [line for line in config_text(64, include or []).splitlines() if line.startswith(f"{key} ")]
    return any(re.search(pattern, text) for line in lines for pattern in line.split()[1].split(","))


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        # Python's own files are left out, and data are not.
        *(("NAME_EXCLUDE", path, True) for path in (
            "/home/me/train.py", "/home/me/__pycache__/a.cpython-311.pyc.140234", "/home/me/lib/libtorch.so.2",
            "/home/me/venv/lib/python3.11/site-packages/torch/x.json", "/home/me/conda/lib/python3.11/encodings",
        )),
        *(("NAME_EXCLUDE", path, False) for path in (
            "/data/train/part-00000.tfrecord", "/data/python/images.npy", "/data/a.python",
        )),
        # Files in memory are always recorded.
        ("NAME_INCLUDE", "/dev/shm/x/a.bin", True), ("NAME_INCLUDE", "/dev/null", False),
        # Programs that do not train are left out.
        *(("APP_EXCLUDE", name, True) for name in ("/usr/bin/uname", "sh", "bash", "/opt/cuda/bin/nvcc", "c++")),
        *(("APP_EXCLUDE", name, False) for name in ("/usr/bin/uname-train", "c++-train")),
    ],
)  # fmt: skip
def test_what_is_recorded_by_default(key: str, text: str, expected: bool) -> None:
    assert matches(key, text) is expected


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        # Output folders that do not exist yet.
        (["/var/not/there/yet"], "/var/not/there/yet/a.pt", True),
        (["--out=/opt/not/there/yet"], "/opt/not/there/yet/a.pt", True),
        (["--log", "/var/not/there.csv"], "/var/not/there.csv", True),
        (["/opt/my data, v1.0/(x)"], "/opt/my data, v1.0/(x)/a", True),
        (["/opt/my data, v1.0/(x)"], "/opt/my data, v1.0/(x)y", False),
        ([], "/opt/jobs/mine/out/a.pt", True),
        ([], "/usr/share/x", False),
    ],
)
def test_the_places_of_a_command_are_recorded(
    monkeypatch: pytest.MonkeyPatch, words: list[str], path: str, expected: bool
) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/opt/jobs/mine")
    places = [place for place in data_places([sys.executable, "train.py", *words]) if needs_include(place)]
    assert matches("NAME_INCLUDE", path, places) is expected


@pytest.mark.parametrize("program", [sys.executable, "/opt/tools/train.py", "/opt/tools/run.sh"])
def test_programs_are_no_data(program: str) -> None:
    assert program not in data_places(["env", program])
    assert [needs_include(path) for path in ("/opt/data", "/var/tmp/run", "/optional", "/")] == [
        True,
        True,
        False,
        False,
    ]
