"""What somebody who takes this project over has to own, beside its budget: `python -m tests.size`, or `make size`.

Lines are all lines of the tracked files of code: Python, Cython, C, JavaScript, CSS, templates; nothing vendored or
generated. Modules count without `__init__.py`. Exits with 1 where a package has more lines than `tests/budget.json`
allows, or the commands more options.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click

from dxt_replay.replay.commands.main import cli
from tests.places import ROOT

_CODE = (".py", ".pyx", ".pxi", ".pxd", ".c", ".h", ".js", ".css", ".html", ".j2", ".jinja")
_COMMON = {"--help", "--verbose", "--quiet", "--json", "--force", "--workers", "--dask"}
"""Options that many commands have and a reader learns once."""


def main() -> int:
    """Print the table. Raises: CalledProcessError where this is no checkout, as in a source archive."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    budget: dict[str, int] = json.loads((ROOT / "tests" / "budget.json").read_text())
    lines, modules, words = Counter[str](), Counter[str](), 0
    for name in filter(None, names):
        path, place = Path(name), ROOT / name
        if path.suffix not in (*_CODE, ".md") or not place.is_file() or place.is_symlink():
            continue
        text = place.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".md":
            words += len(text.split()) if path.parts[0] == "docs" or len(path.parts) == 1 else 0
        elif path.parts[0] in budget and "vendor" not in path.parts:
            lines[path.parts[0]] += text.count("\n")
            modules[path.parts[0]] += path.suffix in (".py", ".pyx", ".c") and path.name != "__init__.py"
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    own = [each for command in commands if command is not None for each in command.params]
    lines["options"] = sum(
        isinstance(each, click.Option) and not each.hidden and _COMMON.isdisjoint(each.opts) for each in own
    )
    print(f"{'package':<16}{'lines':>12}{'budget':>12}{'modules':>12}")
    for package, most in budget.items():
        print(f"{package:<16}{lines[package]:12,}{most:12,}{modules[package]:12,}")
    print(f"words of pages: {words:,}")
    above = [name for name, most in budget.items() if lines[name] > most]
    for name in above:
        print(f"{name}: {lines[name]:,}, the budget is {budget[name]:,}")
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
