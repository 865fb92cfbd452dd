"""The Python that runs a job, and the place of its packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE_S = 60
_FIND = (
    "import importlib.util as u, sys; s = u.find_spec(sys.argv[1]); print(s.submodule_search_locations[0] if s else '')"
)


def job_python(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The first Python in a command, else that of the script that it starts (torchrun), else this one."""
    for word in command:
        if Path(word).name.startswith("python") and (found := shutil.which(word, path=environment.get("PATH"))):
            return found
    script = shutil.which(command[0], path=environment.get("PATH")) if command else None
    if script is not None:
        with open(script, "rb") as file:
            first = file.readline(500).decode("utf-8", "replace").strip()
        words = first.removeprefix("#!").split()
        if first.startswith("#!") and words and Path(words[0]).name.startswith("python") and Path(words[0]).exists():
            return words[0]
    return sys.executable


def folder_of_package(python: str, package: str, environment: Mapping[str, str]) -> Path | None:
    """The folder of a package of that Python, None if it has none. Does not import the package."""
    try:
        done = subprocess.run(
            [python, "-c", _FIND, package],
            env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = done.stdout.strip()
    return Path(found) if done.returncode == 0 and found else None
