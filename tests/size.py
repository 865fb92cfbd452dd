"""What somebody who takes this project over has to own, beside its budget: `python -m tests.size`, or `make size`.

Lines are all lines of the tracked files of code: Python, Cython, C, JavaScript, CSS, templates; nothing vendored or
generated. Modules and records count without `__init__.py` and by their decorators and bases. Exits with 1 where a
package has more lines than `tests/budget.json` allows, or the commands more options.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click

from dxt_replay.replay.commands.main import cli
from tests.places import ROOT

PACKAGES = ("traces", "profiler_merge", "workloads", "replay", "src", "tests", "benchmarks")
COLUMNS = ("lines", "statements", "modules", "classes", "records")
BUDGET = ROOT / "tests" / "budget.json"

_CODE = (".py", ".pyx", ".pxi", ".pxd", ".c", ".h", ".js", ".css", ".html", ".j2", ".jinja")
_RECORD = re.compile("dataclass|NamedTuple|TypedDict|Struct")
_COMMON = {"--help", "--verbose", "--quiet", "--json", "--force", "--workers", "--dask"}
"""Options that many commands have and a reader learns once."""


def tracked() -> list[Path]:
    """The files of the checkout. Raises: CalledProcessError where it is none, as in a source archive."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    return [
        path for path in map(Path, filter(None, names)) if (ROOT / path).is_file() and not (ROOT / path).is_symlink()
    ]


def sizes(files: list[Path]) -> dict[str, Counter[str]]:
    """Package -> COLUMNS."""
    found: dict[str, Counter[str]] = {package: Counter() for package in PACKAGES}
    for path in files:
        if path.parts[0] not in found or path.suffix not in _CODE or "vendor" in path.parts:
            continue
        mine, text = found[path.parts[0]], (ROOT / path).read_text(encoding="utf-8", errors="replace")
        mine["lines"] += text.count("\n")
        mine["modules"] += path.suffix in (".py", ".pyx", ".c") and path.name != "__init__.py"
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            mine["statements"] += isinstance(node, ast.stmt)
            if isinstance(node, ast.ClassDef):
                mine["classes"] += 1
                marks = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases)))
                mine["records"] += _RECORD.search(marks) is not None
    return found


def words(files: list[Path]) -> int:
    """Words of the pages: Markdown in docs/ and beside it."""
    pages = [path for path in files if path.suffix == ".md" and (path.parts[0] == "docs" or len(path.parts) == 1)]
    return sum(len((ROOT / path).read_text(encoding="utf-8").split()) for path in pages)


def options() -> int:
    """Options of all commands, without those that many have."""
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    own = [each for command in commands if command is not None for each in command.params]
    return sum(isinstance(each, click.Option) and not each.hidden and _COMMON.isdisjoint(each.opts) for each in own)


def over_budget(found: dict[str, int], budget: dict[str, int]) -> list[str]:
    """A sentence for each number above its budget."""
    return [
        f"{name}: {count:,}, the budget is {budget[name]:,}" for name, count in found.items() if count > budget[name]
    ]


def main() -> int:
    files, budget = tracked(), json.loads(BUDGET.read_text())
    found, total = sizes(files), options()
    print(f"{'package':<16}" + "".join(f"{name:>12}" for name in COLUMNS) + f"{'budget':>12}")
    for package, counts in found.items():
        print(f"{package:<16}" + "".join(f"{counts[name]:12,}" for name in COLUMNS) + f"{budget[package]:12,}")
    print(f"words of pages: {words(files):,}; options: {total}, budget {budget['options']}")
    above = over_budget({**{package: counts["lines"] for package, counts in found.items()}, "options": total}, budget)
    print(*above, sep="\n", end="\n" if above else "")
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
