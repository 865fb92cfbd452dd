"""Finds Darshan's runtime library on this machine: from the user, the environment, a tool, or usual places."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = "libdarshan.so"
LIBRARY_FOLDERS = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")

ROOT_VARIABLES = (
    "DARSHAN_RUNTIME_DIR",
    "DARSHAN_RUNTIME_ROOT",
    "DARSHAN_RUNTIME_HOME",
    "DARSHAN_BASE_DIR",
    "DARSHAN_DIR",
    "DARSHAN_ROOT",
    "DARSHAN_HOME",
    "DARSHAN_PREFIX",
    "DARSHAN_PATH",
    "EBROOTDARSHANMINRUNTIME",
    "EBROOTDARSHAN",
)
"""Variables in which modules of Cray, EasyBuild, Spack and sites name the folder of an installation."""

PREFIXES = (
    "/usr/local",
    "/usr",
    "/usr/local/darshan*",
    "/opt/darshan*",
    "/opt/cray/pe/darshan-runtime/default",
    "/soft/perftools/darshan/darshan*",
    "~/.local",
    "~/darshan*",
    "~/local",
)
"""Usual places, as globs."""

MODULE_NAMES = ("darshan-runtime", "darshan")
PATIENCE_S = 30

Run = Callable[[Sequence[str]], str]
"""Runs a command of a tool and returns its output, "" if it fails or does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Darshan's runtime library, and where it was found, for people."""

    path: Path
    origin: str


def run_tool(words: Sequence[str]) -> str:
    """The output of a command; "" if it does not exist, fails, or takes longer than 30 s."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def find_library(
    environment: Mapping[str, str], *, run: Run = run_tool, prefixes: Sequence[str] = PREFIXES
) -> Library | None:
    """The first library found, None if there is none.

    In this order: LD_PRELOAD, variables of a loaded module, darshan-config, the conda environment, pkg-config, the
    loader's cache, a module that can be loaded, Spack, usual places."""
    for origin, path in _candidates(environment, run, prefixes):
        if path.is_file():
            return Library(path=path.absolute(), origin=origin)
    return None


def _candidates(environment: Mapping[str, str], run: Run, prefixes: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for word in re.split(r"[ :]+", environment.get("LD_PRELOAD", "")):
        if is_darshan(word):
            yield "LD_PRELOAD", Path(word)
    yield from _in_environment(environment)
    for variable, prefix in (("CONDA_PREFIX", environment.get("CONDA_PREFIX")), ("this Python", sys.prefix)):
        if prefix:
            yield from _below(variable, prefix)
    folder = run(["pkg-config", "--variable=libdir", "darshan-runtime"]).strip()
    if folder:
        yield "pkg-config darshan-runtime", Path(folder, NAME)
    for line in run(["ldconfig", "-p"]).splitlines():
        if line.split(" ", 1)[0].strip() == NAME or line.strip().startswith(f"{NAME}."):
            yield "the loader's cache (ldconfig -p)", Path(line.rpartition("=> ")[2].strip())
    yield from _of_modules(environment, run)
    for place in run(["spack", "location", "-i", "darshan-runtime"]).split("\n"):
        if place.strip():
            yield from _below("spack", place.strip())
    for pattern in prefixes:
        expanded = Path(pattern).expanduser()
        for prefix in map(str, sorted(expanded.parent.glob(expanded.name), reverse=True)):
            yield from _below(prefix, prefix)


def is_darshan(library: str) -> bool:
    """Whether a word of LD_PRELOAD names Darshan's runtime library."""
    return Path(library).name.startswith("libdarshan.so")


def _in_environment(environment: Mapping[str, str], origin: str = "") -> Iterator[tuple[str, Path]]:
    """Libraries from variables, the library search path, or darshan-config beside the library."""
    for variable in ROOT_VARIABLES:
        if environment.get(variable):
            yield from _below(origin or variable, environment[variable])
    for folder in filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")):
        yield origin or "LD_LIBRARY_PATH", Path(folder, NAME)
    program = shutil.which("darshan-config", path=environment.get("PATH", os.defpath))
    if program:
        yield from _below(origin or program, str(Path(program).resolve().parent.parent))


def _below(origin: str, prefix: str) -> Iterator[tuple[str, Path]]:
    for folder in LIBRARY_FOLDERS:
        yield origin, Path(prefix, folder, NAME)


def _of_modules(environment: Mapping[str, str], run: Run) -> Iterator[tuple[str, Path]]:
    """Libraries that loading a module of environment modules or Lmod would show; loads none."""
    if not any(environment.get(name) for name in ("MODULESHOME", "LMOD_CMD", "MODULEPATH")):
        return
    for name in MODULE_NAMES:
        text = run(["bash", "-lc", f"module load {name} >/dev/null 2>&1 && env"])
        loaded = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))
        for word in re.split(r"[ :]+", loaded.get("LD_PRELOAD", "")):
            if is_darshan(word):
                yield f"module load {name}", Path(word)
        yield from _in_environment(loaded, f"module load {name}")
