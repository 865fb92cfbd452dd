"""Arrows point down. When an import fails this, move the code, not the list. Imports inside functions count."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator

from tests.places import PACKAGE

ORDER = ("traces", "profiler_merge", "workloads", "replay", "workloads.fit", "replay.commands")
"""Packages, from below: each may import those before it. A module belongs to the longest name that fits."""

COMMON = {"numpy", "pyarrow", "click", "jinja2", "markupsafe", "msgspec", "yaml"}
"""What every installation has; anything else that is neither here nor heavy is a new dependency."""

HEAVY = {
    "duckdb": ("profiler_merge.analysis",),
    "distributed": ("traces.workers",),
    "h5py": ("profiler_merge.analysis", "profiler_merge.hdf5", "replay.engine.backends"),
    "mpi4py": ("replay.ranks", "replay.engine.backends"),
    "obstore": ("replay.target",),
    "pandas": ("profiler_merge.analysis",),
    "plotly": ("replay.commands",),
    **dict.fromkeys(("scipy", "tensorflow", "torch"), ()),
}
"""Heavy or optional package -> the folders that import it, inside a function."""

IN_THE_JOB = ("profiler_merge.recording", "profiler_merge.request_hooks")
"""What a recorded job imports: it has the standard library, and nothing else for certain."""

PATHS = {
    path: path.relative_to(PACKAGE).with_suffix("") for part in ORDER[:4] for path in (PACKAGE / part).rglob("*.py")
}
SOURCES = {".".join(name.parts).removesuffix(".__init__"): path for path, name in PATHS.items()}


def _imports(importer: str) -> Iterator[tuple[str, str, bool]]:
    """(importer, module of the project or other name, whether inside a function), without `if TYPE_CHECKING:`."""
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(SOURCES[importer].read_text(encoding="utf-8")), False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += [(each, inside) for each in node.orelse]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if isinstance(node, ast.ImportFrom) and node.level:
                above = f"dxt_replay.{importer.rpartition('.')[0]}.{above}"
            for name in (above + alias.name for alias in node.names):
                below = name.removeprefix("dxt_replay.")
                ours = below if below in SOURCES else below.rpartition(".")[0] or "replay.commands"
                yield importer, ours if name.startswith("dxt_replay") else name, inside
        else:
            inside |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            waiting += [(each, inside) for each in ast.iter_child_nodes(node)]


IMPORTS = [found for importer in SOURCES for found in _imports(importer)]
OWN = [(importer, name) for importer, name, _ in IMPORTS if name.split(".")[0] in ORDER]


def _is_below(module: str, folders: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{folder}.") for folder in folders)


def _level(module: str) -> int:
    return ORDER.index(max((each for each in ORDER if _is_below(module, (each,))), key=len))


def test_a_package_imports_those_before_it_and_nothing_imports_in_circles() -> None:
    assert len(OWN) > 100, "the test looks at the wrong files"
    assert [each for each in OWN if _level(each[1]) > _level(each[0])] == []
    for length in (2, 9):  # packages, modules
        arrows: dict[str, set[str]] = {}
        for each in OWN:
            importer, name = (".".join(module.split(".")[:length]) for module in each)
            arrows.setdefault(importer, set()).update({name} - {importer})
        graphlib.TopologicalSorter(arrows).prepare()  # raises CycleError with the circle


def test_other_packages_are_known_and_heavy_ones_stay_at_home() -> None:
    others = [(name.split(".")[0], importer, inside) for importer, name, inside in IMPORTS]
    assert {name for name, *_ in others} <= {*ORDER, *COMMON, *HEAVY, *sys.stdlib_module_names}
    heavy = [each for each in others if each[0] in HEAVY]
    assert [each for each in heavy if not each[2] or not _is_below(each[1], HEAVY[each[0]])] == []


def test_a_recorded_job_imports_the_standard_library_alone() -> None:
    mine = {name for importer, name, _ in IMPORTS if _is_below(importer, IN_THE_JOB)}
    assert any(_is_below(name, IN_THE_JOB) for name in mine)
    assert {name.split(".")[0] for name in mine if not _is_below(name, IN_THE_JOB)} <= sys.stdlib_module_names
