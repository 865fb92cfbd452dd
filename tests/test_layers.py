"""Arrows point down. When an import fails this, move the code, not the list.

Read from the source by `ast`, so that imports inside functions count and nothing is executed. Imports under
`if TYPE_CHECKING:` only name types and do not count.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.places import PACKAGE

ORDER = ("traces", "profiler_merge", "workloads", "replay", "workloads.fit", "replay.commands")
"""Packages, from below: each may import those before it. A module belongs to the longest name that fits."""

COMMON = {"numpy", "pyarrow", "click", "jinja2", "markupsafe", "msgspec", "yaml"}
"""What every installation has; anything else that is neither here nor heavy is a new dependency."""

HEAVY = {
    "duckdb": {"profiler_merge.analysis"},
    "distributed": {"traces.workers"},
    "h5py": {"profiler_merge.analysis", "profiler_merge.hdf5", "replay.engine.backends"},
    "mpi4py": {"replay.ranks", "replay.engine.backends"},
    "obstore": {"replay.target"},
    "pandas": {"profiler_merge.analysis"},
    "plotly": {"replay.commands"},
    "scipy": set(),
    "tensorflow": set(),
    "torch": set(),
}
"""Heavy or optional package -> the folders that import it, inside a function."""

IN_THE_JOB = ("profiler_merge.recording", "profiler_merge.request_hooks")
"""What a recorded job imports: it has the standard library, and nothing else for certain."""

FOLDERS = ("traces", "profiler_merge", "workloads", "replay")
SOURCES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for part in FOLDERS
    for path in (PACKAGE / part).rglob("*.py")
}


class Import(NamedTuple):
    importer: str
    name: str
    line: int
    inside_function: bool


def imports(importer: str, path: Path) -> Iterator[Import]:
    """The imports of a module. `dxt_replay` itself is the public interface."""
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += [(each, inside) for each in node.orelse]
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = f"dxt_replay.{importer.rpartition('.')[0]}." if node.level else ""
            names = [f"{above}{node.module}.{alias.name}" for alias in node.names]
        else:
            inside |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            waiting += [(each, inside) for each in ast.iter_child_nodes(node)]
            continue
        for name in names:
            yield Import(importer, _module(name), node.lineno, inside)


def _module(name: str) -> str:
    """The module of the project in which an imported name stands, without `dxt_replay`; else the name itself."""
    if name.split(".")[0] != "dxt_replay":
        return name
    below = name.removeprefix("dxt_replay").removeprefix(".")
    return below if below in SOURCES else below.rpartition(".")[0] or "replay.commands"


IMPORTS = [found for module, path in SOURCES.items() for found in imports(module, path)]
OWN = [found for found in IMPORTS if found.name.split(".")[0] in FOLDERS]


def is_below(module: str, *folders: str) -> bool:
    return any(module == folder or module.startswith(f"{folder}.") for folder in folders)


def level(module: str) -> int:
    return ORDER.index(max((each for each in ORDER if is_below(module, each)), key=len))


def package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_a_package_imports_those_before_it() -> None:
    assert len(OWN) > 100, "the test looks at the wrong files"
    assert not [found for found in OWN if level(found.name) > level(found.importer)]


def test_neither_modules_nor_packages_import_in_circles() -> None:
    for name_of in (str, package):
        arrows: dict[str, set[str]] = {}
        for importer, name, *_ in OWN:
            arrows.setdefault(name_of(importer), set()).update({name_of(name)} - {name_of(importer)})
        graphlib.TopologicalSorter(arrows).prepare()  # raises CycleError with the circle


def test_heavy_packages_stay_at_home() -> None:
    heavy = [found for found in IMPORTS if found.name.split(".")[0] in HEAVY]
    assert not [found for found in heavy if not is_below(found.importer, *HEAVY[found.name.split(".")[0]])]
    assert not [found for found in heavy if not found.inside_function]


def test_other_packages_are_known() -> None:
    known = {*FOLDERS, *COMMON, *HEAVY, *sys.stdlib_module_names}
    assert not [found for found in IMPORTS if found.name.split(".")[0] not in known]


def test_a_recorded_job_imports_the_standard_library_alone() -> None:
    mine = [found for found in IMPORTS if is_below(found.importer, *IN_THE_JOB)]
    own = [found for found in mine if is_below(found.name, *IN_THE_JOB)]
    assert own
    assert {found.name.split(".")[0] for found in mine if found not in own} <= sys.stdlib_module_names
