"""Who may import whom (`tests/layer_table.py`). When an import fails this, move the code, not the table.

Read from the source by `ast`, so that imports inside functions count and nothing is executed. Imports under
`if TYPE_CHECKING:` only name types and do not count.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.layer_table import ALL, COMMAND_LINE, EVERYWHERE, FOUNDATIONS, HOMES, LIGHT_HOMES, MAY_IMPORT
from tests.places import PACKAGE, ROOT
from tests.pure_modules import IMPURE, PURE


@dataclass(frozen=True)
class Import:
    importer: str
    name: str
    line: int
    inside_function: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.name}"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


COPIED = "profiler_merge.request_hooks"
"""The job's processes have this folder under another name, so its modules name each other relatively."""

SOURCES = {
    module_name(path): path
    for part in ("traces", "profiler_merge", "replay", "workloads")
    for path in (PACKAGE / part).rglob("*.py")
}


def short_name(module: str) -> str:
    """A module's name as in the tables, below `dxt_replay`, which by itself is the public interface."""
    return "replay.interface" if module == "dxt_replay" else module.removeprefix("dxt_replay.")


@functools.cache
def imports_of(module: str) -> list[Import]:
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    return list(_imports(module, tree, inside_function=False))


def _imports(module: str, node: ast.AST, *, inside_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _imports(module, other, inside_function=inside_function)
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, short_name(alias.name), child.lineno, inside_function)
        elif isinstance(child, ast.ImportFrom):
            copied = child.level == 1 and module.startswith(f"{COPIED}.")
            assert not child.level or copied, f"{module}:{child.lineno}: name the package, no relative imports"
            package = f"{COPIED}.{child.module}" if copied else short_name(str(child.module))
            for alias in child.names:
                submodule = f"{package}.{alias.name}"
                name = submodule if submodule in SOURCES else package
                yield Import(module, name, child.lineno, inside_function)
        in_function = inside_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _imports(module, child, inside_function=in_function)


def own(found: Import) -> bool:
    return found.name.split(".")[0] in ("traces", "profiler_merge", "replay", "workloads", "benchmarks", "tests")


def part_of(module: str) -> str:
    return max(
        (part for part in MAY_IMPORT if module == part or module.startswith(f"{part}.")), key=len, default=module
    )


def test_the_sources_are_found() -> None:
    assert {
        "traces.schema",
        "profiler_merge.merge",
        "replay.fidelity.compare",
        "replay.commands.main",
    } <= SOURCES.keys()
    assert any(found.name == "traces.store.reader" for found in imports_of("replay.fidelity.compare"))
    assert any(
        found.name == "replay.fidelity.compare" and found.inside_function
        for found in imports_of("replay.interface.comparisons")
    )


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_arrows_point_down(module: str) -> None:
    allowed = MAY_IMPORT[part_of(module)]
    wrong = [str(found) for found in imports_of(module) if own(found) and part_of(found.name) not in allowed]
    assert not wrong


@pytest.mark.parametrize("module", sorted(FOUNDATIONS))
def test_foundations_stay_foundations(module: str) -> None:
    wrong = [str(found) for found in imports_of(module) if own(found) and found.name not in FOUNDATIONS[module]]
    assert not wrong


def imported_by(folder: str) -> set[str]:
    """The folders that the modules of a folder import, without itself."""
    mine = [module for module in SOURCES if part_of(module) == folder]
    return {part_of(found.name) for module in mine for found in imports_of(module) if own(found)} - {folder}


def test_folders_have_no_cycles() -> None:
    """A folder that imports another one is never imported by it, not even through a third."""
    order = graphlib.TopologicalSorter({folder: imported_by(folder) for folder in MAY_IMPORT})
    assert set(order.static_order()) == MAY_IMPORT.keys()


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT.keys() - ALL))
def test_the_table_allows_no_more_than_is_used(folder: str) -> None:
    assert MAY_IMPORT[folder] - {folder} == imported_by(folder)


def test_there_are_no_cycles() -> None:
    finished: set[str] = set()

    def follow(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in finished:
            for found in imports_of(module) if module in SOURCES else ():
                if own(found) and found.name != module:
                    follow(found.name, (*path, module))
            finished.add(module)

    for module in SOURCES:
        follow(module, ())


def test_heavy_packages_stay_at_home() -> None:
    heavy = [found for module in SOURCES for found in imports_of(module) if found.name.split(".")[0] in HOMES]
    assert heavy, "nothing heavy found: the test looks at the wrong files"
    strangers = [str(found) for found in heavy if found.importer not in HOMES[found.name.split(".")[0]]]
    eager = [f"{found} when it is imported itself" for found in heavy if not found.inside_function]
    assert not strangers
    assert not eager


def test_other_packages_are_known() -> None:
    """Whatever is neither the project, the standard library, NumPy, Arrow, click nor heavy is a new dependency."""
    known = EVERYWHERE | HOMES.keys() | sys.stdlib_module_names
    for module in SOURCES:
        allowed = known | (COMMAND_LINE if part_of(module) == "replay.commands" else set())
        allowed |= LIGHT_HOMES.get(module, set())
        strangers = [
            str(found) for found in imports_of(module) if not own(found) and found.name.split(".")[0] not in allowed
        ]
        assert not strangers


@pytest.mark.parametrize("module", sorted(PURE))
def test_the_middle_is_pure(module: str) -> None:
    wrong = [str(found) for found in imports_of(module) if found.name.split(".")[0] in IMPURE]
    assert not wrong


def test_commands_import_only_click_to_be_listed() -> None:
    """What a command module imports itself is paid by every `--help`; the rest belongs into the function."""
    light = {
        "click",
        "traces.errors",
        "traces.version",
        "replay.commands.family_options",
        "replay.commands.shared_options",
        "replay.options.choices",
        "replay.options.looking",
        "replay.options.making",
        "replay.options.option",
        "traces.paces",
        "replay.commands.session",
    }
    wrong = [
        str(found)
        for module in SOURCES
        if module.startswith("replay.commands.") and module != "replay.commands.progress"
        for found in imports_of(module)
        if not found.inside_function
        and found.name not in light
        and found.name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert not wrong


def modules_after(program: str) -> set[str]:
    """Top-level names in sys.modules, and our own packages, after a program has run in a fresh interpreter."""
    names = "{name.removeprefix('dxt_replay.').split('.')[0] for name in sys.modules}"
    report = f"; import sys; print(' '.join(sorted({names})), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program + report], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_help_imports_nothing_heavy() -> None:
    loaded = modules_after("from dxt_replay.replay.commands.main import main; assert main(['--help']) == 0")
    assert "click" in loaded
    assert not loaded & (HOMES.keys() | EVERYWHERE | {"profiler_merge"})


def test_importing_every_module_imports_nothing_heavy() -> None:
    """Without a compiled core or an optional package installed, every module can still be imported."""
    names = [name for name in sorted(SOURCES) if not name.endswith(("_child", ".compiled"))]
    loaded = modules_after(f"import importlib; [importlib.import_module(f'dxt_replay.{{name}}') for name in {names!r}]")
    assert "numpy" in loaded
    assert not loaded & HOMES.keys()
