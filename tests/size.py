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

COLUMNS = ("lines", "modules", "classes", "records")
_CODE = (".py", ".pyx", ".pxi", ".pxd", ".c", ".h", ".js", ".css", ".html", ".j2", ".jinja")
_RECORD = re.compile("dataclass|NamedTuple|TypedDict|Struct")
_COMMON = {"--help", "--verbose", "--quiet", "--json", "--force", "--workers", "--dask"}
"""Options that many commands have and a reader learns once."""


def main() -> int:
    """Print the table. Raises: CalledProcessError where this is no checkout, as in a source archive."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [
        path for path in map(Path, filter(None, names)) if (ROOT / path).is_file() and not (ROOT / path).is_symlink()
    ]
    budget: dict[str, int] = json.loads((ROOT / "tests" / "budget.json").read_text())
    found: dict[str, Counter[str]] = {package: Counter() for package in budget if package != "options"}
    words = 0
    for path in files:
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace") if path.suffix in (*_CODE, ".md") else ""
        if path.suffix == ".md" and (path.parts[0] == "docs" or len(path.parts) == 1):
            words += len(text.split())
        elif path.parts[0] in found and path.suffix in _CODE and "vendor" not in path.parts:
            mine = found[path.parts[0]]
            mine["lines"] += text.count("\n")
            mine["modules"] += path.suffix in (".py", ".pyx", ".c") and path.name != "__init__.py"
            for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
                if isinstance(node, ast.ClassDef):
                    mine["classes"] += 1
                    marks = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases)))
                    mine["records"] += _RECORD.search(marks) is not None
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    own = [each for command in commands if command is not None for each in command.params]
    options = sum(isinstance(each, click.Option) and not each.hidden and _COMMON.isdisjoint(each.opts) for each in own)
    print(f"{'package':<16}" + "".join(f"{name:>12}" for name in COLUMNS) + f"{'budget':>12}")
    for package, counts in found.items():
        print(f"{package:<16}" + "".join(f"{counts[name]:12,}" for name in COLUMNS) + f"{budget[package]:12,}")
    print(f"words of pages: {words:,}; options: {options}, budget {budget['options']}")
    counted = {**{package: counts["lines"] for package, counts in found.items()}, "options": options}
    above = [name for name, count in counted.items() if count > budget[name]]
    for name in above:
        print(f"{name}: {counted[name]:,}, the budget is {budget[name]:,}")
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
