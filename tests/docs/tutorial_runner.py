"""Runs a tutorial of docs/tutorials as a reader types it, and holds the output that it shows to the real one.

What a fence of a tutorial means:

    ```python            a first line `# NAME.py` makes the rest the file NAME.py
    ```console           `$ COMMAND` is typed, continued by lines `> ...`; the lines up to the next `$` are its output

`...` in an expected line stands for any text, on a line of its own for any lines. A comment in the line before a fence
makes exceptions: with `<!-- figures vary -->` each number of the output may be any other, and with
`<!-- exits with 1 -->` the commands exit with this status instead of 0. `<!-- figures vary, exits with 1 -->` is both.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?:<!-- (?P<vary>figures vary)?(?:, )?(?:exits with (?P<status>\d+))? -->\n)?"
    r"```(?P<kind>console|python)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
NUMBER = re.compile(r"\d[\d,]*(\.\d+)?")
ANYTHING = "\0"


@dataclass(frozen=True, slots=True)
class Typed:
    """A command, and the output and exit status that the page shows; `vary`: numbers may differ."""

    command: str
    expected: str
    vary: bool
    status: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """A file that the reader writes."""

    name: str
    text: str


def steps(page: str) -> Iterator[Typed | Written]:
    """What the reader does, in order."""
    for fence in FENCE.finditer(page):
        text = fence["text"]
        if fence["kind"] == "python":
            first, _, rest = text.partition("\n")
            if (name := re.fullmatch(r"# (\w+\.py)", first)) is not None:
                yield Written(name[1], rest)
            continue
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            lines = part.split("\n")
            command = lines.pop(0)
            while lines and lines[0].startswith("> "):
                command += "\n" + lines.pop(0)[2:]
            expected = "\n".join(lines).strip("\n")
            yield Typed(command, expected, fence["vary"] is not None, int(fence["status"] or 0))


def is_shown(actual: str, typed: Typed) -> bool:
    """Whether the output is the one that the page shows."""

    def plain(text: str) -> str:
        text = "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.strip("\n").split("\n"))
        return NUMBER.sub("0", text) if typed.vary else text

    pattern = re.escape(re.sub(r"^\.\.\.$", ANYTHING, plain(typed.expected), flags=re.M).replace("...", ANYTHING))
    return re.fullmatch(pattern.replace(ANYTHING, ".*"), plain(actual), re.S) is not None


def run(page: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[Typed, str]]:
    """(command, output) of each command that exits or prints otherwise than the page says."""
    for step in steps(page.read_text(encoding="utf-8")):
        if isinstance(step, Written):
            (folder / step.name).write_text(step.text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-c", step.command],
            cwd=folder,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != step.status or not is_shown(done.stdout, step):
            yield step, f"{done.stdout}(exit status {done.returncode})"
