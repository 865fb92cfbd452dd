"""Who may import whom. When an import fails this, move the code, not the table.

Read from the source by `ast`, so that imports inside functions count and nothing is executed. Imports under
`if TYPE_CHECKING:` only name types and do not count.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.places import ROOT

MAY_IMPORT = {
    "traces": {"traces"},
    "replay": {"replay"},
    "traces.store": {"traces.store", "traces"},
    "traces.measures": {"traces.measures", "traces", "traces.store"},
    "profiler_merge.anchor": {"profiler_merge.anchor"},
    "profiler_merge.recording": {"profiler_merge.recording"},
    "profiler_merge.darshan": {"profiler_merge.darshan", "traces"},
    "profiler_merge.profiles": {"profiler_merge.profiles", "traces", "traces.measures"},
    "profiler_merge.profiles.xplane": {"profiler_merge.profiles.xplane", "profiler_merge.profiles", "traces"},
    "profiler_merge.profiles.kineto": {"profiler_merge.profiles.kineto", "profiler_merge.profiles", "traces"},
    "profiler_merge.profiles.trace_viewer": {
        "profiler_merge.profiles.trace_viewer",
        "profiler_merge.profiles",
        "profiler_merge.profiles.kineto",
        "traces",
    },
    "profiler_merge.profiles.reading": {
        "profiler_merge.profiles.reading",
        "profiler_merge.profiles",
        "profiler_merge.profiles.kineto",
        "profiler_merge.profiles.trace_viewer",
        "profiler_merge.profiles.xplane",
    },
    "profiler_merge.clocks": {
        "profiler_merge.clocks",
        "profiler_merge.anchor",
        "profiler_merge.darshan",
        "profiler_merge.profiles",
        "profiler_merge.profiles.kineto",
        "profiler_merge.profiles.reading",
        "traces",
        "traces.measures",
    },
    "profiler_merge.hdf5": {"profiler_merge.hdf5", "profiler_merge.darshan", "traces"},
    "profiler_merge.untraced": {"profiler_merge.untraced", "profiler_merge.darshan", "traces"},
    "profiler_merge.unprofiled": {"profiler_merge.unprofiled", "traces", "traces.measures"},
    "profiler_merge": {
        "profiler_merge",
        "profiler_merge.clocks",
        "profiler_merge.darshan",
        "profiler_merge.hdf5",
        "profiler_merge.profiles",
        "profiler_merge.profiles.reading",
        "profiler_merge.profiles.xplane",
        "profiler_merge.tracers",
        "profiler_merge.tracers.dftracer",
        "profiler_merge.tracers.strace",
        "profiler_merge.unprofiled",
        "profiler_merge.untraced",
        "traces",
        "traces.store",
    },
    "profiler_merge.tracers": {"profiler_merge.tracers", "profiler_merge.profiles", "traces", "traces.measures"},
    "profiler_merge.tracers.dftracer": {
        "profiler_merge.tracers.dftracer",
        "profiler_merge.profiles",
        "profiler_merge.tracers",
        "traces",
        "traces.measures",
    },
    "profiler_merge.tracers.strace": {"profiler_merge.tracers.strace", "profiler_merge.tracers", "traces"},
    "profiler_merge.recorder": {
        "profiler_merge.recorder",
        "profiler_merge.anchor",
        "profiler_merge.darshan",
        "profiler_merge.recording",
        "traces",
    },
    "profiler_merge.analysis": {
        "profiler_merge.analysis",
        "traces",
        "traces.measures",
        "traces.store",
    },
    "profiler_merge.export": {
        "profiler_merge.export",
        "profiler_merge.darshan",
        "traces",
        "traces.measures",
        "traces.store",
    },
    "profiler_merge.workloads": {"profiler_merge.workloads", "profiler_merge.darshan", "traces", "traces.store"},
    "replay.hdf5": {"replay.hdf5", "traces", "traces.store"},
    "replay.twin": {"replay.twin", "replay.hdf5", "traces", "traces.store"},
    "replay.engine.backends": {"replay.engine.backends", "replay.hdf5", "traces"},
    "replay.engine": {"replay.engine", "replay.engine.backends", "traces", "traces.measures"},
    "replay.ranks": {"replay.ranks", "replay.engine", "traces"},
    "replay.plan": {
        "replay.plan",
        "replay.engine",
        "replay.engine.backends",
        "replay.hdf5",
        "replay.ranks",
        "replay.twin",
        "traces",
        "traces.measures",
        "traces.store",
    },
    "replay.show": {"replay.show", "traces"},
    "replay.show.page": {"replay.show.page", "replay.show", "traces", "traces.store"},
    "replay.causal": {
        "replay.causal",
        "replay.engine",
        "replay.plan",
        "replay.ranks",
        "replay.show",
        "traces",
        "traces.measures",
        "traces.store",
    },
    "replay.simulation": {
        "replay.simulation",
        "replay.causal",
        "replay.engine",
        "replay.plan",
        "traces",
        "traces.store",
    },
    "replay.calibration": {
        "replay.calibration",
        "replay.engine",
        "replay.engine.backends",
        "replay.simulation",
        "replay.twin",
        "traces",
    },
    "replay.run": {
        "replay.run",
        "replay.causal",
        "replay.engine",
        "replay.engine.backends",
        "replay.plan",
        "replay.ranks",
        "replay.twin",
        "traces",
        "traces.measures",
        "traces.store",
    },
    "replay.transform": {
        "replay.transform",
        "replay.causal",
        "replay.engine",
        "replay.plan",
        "replay.ranks",
        "traces",
        "traces.measures",
        "traces.store",
    },
    "replay.sharing": {"replay.sharing", "traces", "traces.store"},
    "replay.fidelity": {"replay.fidelity", "replay.plan", "traces", "traces.measures", "traces.store"},
    "replay.fitting": {
        "replay.fitting",
        "profiler_merge.workloads",
        "replay.causal",
        "replay.fidelity",
        "replay.plan",
        "replay.ranks",
        "replay.run",
        "traces",
        "traces.measures",
        "traces.store",
    },
    "replay.regression": {
        "replay.regression",
        "replay.plan",
        "replay.ranks",
        "replay.run",
        "replay.show",
        "replay.show.page",
        "replay.twin",
        "traces",
        "traces.measures",
        "traces.store",
    },
}
MAY_IMPORT["replay.interface"] = {*MAY_IMPORT, "replay.interface"}
MAY_IMPORT["replay.commands"] = {*MAY_IMPORT, "replay.commands"}
MAY_IMPORT["replay.interface.start"] = {"replay.interface.start", "replay.interface", "replay.commands"}
"""Folder -> folders that it may import; a module belongs to the longest name that fits. The commands are thin faces of
the interface, which may import all below; nobody but the start of the program imports a command."""

ALL = {"replay.interface", "replay.commands"}
"""Folders that may import more than they use today."""

TWO_NAMES = {"replay.interface", "replay.interface.start"}
"""Modules that are also imported as `dxt_replay`, before it is known whose package `replay` is."""

FOUNDATIONS = {
    "traces.errors": set(),
    "traces.version": set(),
    "traces.units": {"traces.errors"},
    "traces.measures.stable_order": set(),
    "traces.schema": {"traces.errors"},
    "traces.output": {"traces.errors"},
    "traces.store.info": {"traces.errors", "traces.schema"},
    "traces.store.checks": {"traces.errors", "traces.schema", "traces.store.info"},
    "traces.store.usage": {"traces.errors", "traces.schema", "traces.store.checks"},
    "traces.part": {"traces.errors", "traces.schema", "traces.units"},
    "traces.file_rows": set(),
    "traces.layers": {"traces.errors", "traces.schema"},
    "traces.steps": {"traces.schema"},
    "traces.gzip_blocks": set(),
    "traces.text": set(),
    "traces.store.reader": {
        "traces.errors",
        "traces.part",
        "traces.schema",
        "traces.store.checks",
        "traces.store.info",
        "traces.store.usage",
        "traces.units",
    },
    "traces.store.writer": {"traces.errors", "traces.output", "traces.schema", "traces.store.usage"},
    "traces.measures.intervals": set(),
    "traces.measures.distribution": {"traces.measures.stable_order"},
}
"""The contract, and what everything measures with: what each of these may import of the project."""

HOMES = {
    "darshan": {"profiler_merge.darshan.counters_child"},
    "google": set(),
    "h5py": {"profiler_merge.analysis.contents", "profiler_merge.hdf5.inspection", "replay.engine.backends.hdf5"},
    "mpi4py": {"replay.ranks.comm", "replay.engine.backends.mpiio"},
    "pandas": {"profiler_merge.analysis.table_formats"},
    "plotly": {"replay.interface.charts"},
    "rich": {"replay.show.terminal"},
    "scipy": set(),
    "tensorflow": set(),
    "torch": set(),
}
"""Heavy package -> the modules that may import it, inside a function."""

LIGHT_HOMES = {
    "profiler_merge.profiles.kineto.events": {"msgspec"},
    "traces.store.info": {"msgspec"},
    "profiler_merge.workloads.yaml_text": {"yaml"},
    "replay.simulation.model_file": {"yaml"},
    "profiler_merge.tracers.dftracer.pfw_events": {"msgspec"},
}
"""Module -> the light packages that it alone may import."""

PURE = {
    "replay.calibration.caveats",
    "replay.calibration.estimates",
    "replay.calibration.model_fit",
    "replay.calibration.probe_plan",
    "replay.calibration.throttle",
    "replay.show.calibration_sections",
    "profiler_merge.analysis.access_order",
    "profiler_merge.analysis.bars",
    "profiler_merge.analysis.concurrency",
    "profiler_merge.analysis.finding",
    "profiler_merge.analysis.findings_compute",
    "profiler_merge.analysis.findings_storage",
    "profiler_merge.analysis.loops",
    "profiler_merge.analysis.reread",
    "profiler_merge.analysis.sizes",
    "profiler_merge.analysis.spreading",
    "profiler_merge.analysis.step_times",
    "replay.fidelity.curves",
    "replay.fidelity.exactness",
    "replay.fidelity.compare",
    "replay.fitting.estimate",
    "replay.fitting.evaluations",
    "replay.fitting.loader",
    "replay.fitting.pipeline",
    "replay.fitting.record",
    "replay.fitting.sample_shape",
    "replay.fitting.sample_size",
    "replay.fitting.step_times",
    "replay.fitting.workload_text",
    "replay.hdf5.boxes",
    "replay.hdf5.compressed_chunks",
    "replay.hdf5.file_metadata",
    "replay.hdf5.layout",
    "traces.measures.lane_times",
    "replay.fidelity.side_measures",
    "replay.plan.pacing",
    "replay.simulation.storage_model",
    "replay.simulation.cached_files",
    "replay.simulation.model_numbers",
    "replay.simulation.simulated_storage",
    "replay.interface.timeline_figure",
    "replay.show.page.figures",
    "replay.show.page.body",
    "replay.show.page.parts",
    "replay.regression.comparison",
    "replay.regression.health",
    "replay.regression.junit",
    "replay.regression.regression_sections",
    "replay.regression.signed_rank",
    "replay.regression.interval_verdict",
    "profiler_merge.analysis.remedies",
    "replay.transform.changes",
    "replay.transform.compression",
    "replay.transform.hdf5_chunks",
    "replay.transform.larger_batches",
    "replay.transform.loop_pieces",
    "replay.transform.loop_schedule",
    "replay.transform.new_spans",
    "replay.transform.rank_changes",
    "replay.transform.rank_work",
    "replay.transform.readers",
    "replay.transform.request_cost",
    "replay.transform.source_work",
    "replay.transform.streams",
    "replay.transform.strong_scaling",
    "replay.transform.transfer_size",
    "profiler_merge.analysis.steady_loop",
    "replay.sharing.anonymous_names",
    "replay.sharing.public_words",
    "replay.show.data_tables",
    "replay.show.finding_sections",
    "replay.show.fit_sections",
    "profiler_merge.recorder.darshan_settings",
    "profiler_merge.recorder.launch_line",
    "replay.show.generate_sections",
    "replay.show.merge_sections",
    "replay.show.record_sections",
    "replay.show.run_sections",
    "replay.show.sharing_sections",
    "replay.show.simulation_sections",
    "replay.show.glossary",
    "replay.show.section",
    "replay.show.summary_sections",
    "replay.show.table_views",
    "replay.show.table_widths",
    "replay.show.timeline_section",
    "replay.show.transform_sections",
    "replay.show.page.html_tables",
    "replay.fidelity.sequences",
    "replay.fidelity.similarity",
    "replay.fidelity.timing",
    "traces.file_rows",
    "traces.layers",
    "traces.part",
    "traces.steps",
    "traces.measures.access_pattern",
    "traces.measures.distribution",
    "traces.measures.intervals",
    "traces.measures.io_totals",
    "traces.measures.span_times",
    "traces.measures.stable_order",
}
"""Arrays in, arrays out: they import no clock, file, process or network."""

IMPURE = {"io", "os", "pathlib", "random", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "time"}

EVERYWHERE = {"numpy", "pyarrow"}
COMMAND_LINE = {"click"}


@dataclass(frozen=True)
class Import:
    importer: str
    name: str
    line: int
    inside_function: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.name}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path for part in ("traces", "profiler_merge", "replay") for path in (ROOT / part).rglob("*.py")
}


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
                yield Import(module, alias.name, child.lineno, inside_function)
        elif isinstance(child, ast.ImportFrom):
            relative = child.level == 1 and module in TWO_NAMES
            assert relative or not child.level, f"{module}:{child.lineno}: name the package, no relative imports"
            package = f"replay.interface.{child.module}" if relative else str(child.module)
            for alias in child.names:
                submodule = f"{package}.{alias.name}"
                name = submodule if submodule in SOURCES else package
                yield Import(module, name, child.lineno, inside_function)
        in_function = inside_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _imports(module, child, inside_function=in_function)


IMPORTS = {module: imports_of(module) for module in SOURCES}


def own(found: Import) -> bool:
    return found.name.split(".")[0] in ("traces", "profiler_merge", "replay", "benchmarks", "tests")


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
    assert any(found.name == "traces.store.reader" for found in IMPORTS["replay.fidelity.compare"])
    assert any(
        found.name == "replay.fidelity.compare" and found.inside_function
        for found in IMPORTS["replay.interface.comparisons"]
    )


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_arrows_point_down(module: str) -> None:
    allowed = MAY_IMPORT[part_of(module)]
    wrong = [str(found) for found in IMPORTS[module] if own(found) and part_of(found.name) not in allowed]
    assert not wrong


@pytest.mark.parametrize("module", sorted(FOUNDATIONS))
def test_foundations_stay_foundations(module: str) -> None:
    wrong = [str(found) for found in IMPORTS[module] if own(found) and found.name not in FOUNDATIONS[module]]
    assert not wrong


def imported_by(folder: str) -> set[str]:
    """The folders that the modules of a folder import, without itself."""
    mine = [module for module in SOURCES if part_of(module) == folder]
    return {part_of(found.name) for module in mine for found in IMPORTS[module] if own(found)} - {folder}


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
            for found in IMPORTS.get(module, []):
                if own(found) and found.name != module:
                    follow(found.name, (*path, module))
            finished.add(module)

    for module in SOURCES:
        follow(module, ())


def test_heavy_packages_stay_at_home() -> None:
    heavy = [found for imports in IMPORTS.values() for found in imports if found.name.split(".")[0] in HOMES]
    assert heavy, "nothing heavy found: the test looks at the wrong files"
    strangers = [str(found) for found in heavy if found.importer not in HOMES[found.name.split(".")[0]]]
    eager = [f"{found} when it is imported itself" for found in heavy if not found.inside_function]
    assert not strangers
    assert not eager


def test_other_packages_are_known() -> None:
    """Whatever is neither the project, the standard library, NumPy, Arrow, click nor heavy is a new dependency."""
    known = EVERYWHERE | HOMES.keys() | sys.stdlib_module_names
    for module, imports in IMPORTS.items():
        allowed = known | (COMMAND_LINE if part_of(module) == "replay.commands" else set())
        allowed |= LIGHT_HOMES.get(module, set())
        strangers = [str(found) for found in imports if not own(found) and found.name.split(".")[0] not in allowed]
        assert not strangers


@pytest.mark.parametrize("module", sorted(PURE))
def test_the_middle_is_pure(module: str) -> None:
    wrong = [str(found) for found in IMPORTS[module] if found.name.split(".")[0] in IMPURE]
    assert not wrong


def test_commands_import_only_click_to_be_listed() -> None:
    """What a command module imports itself is paid by every `--help`; the rest belongs into the function."""
    light = {
        "click",
        "traces.errors",
        "traces.version",
        "replay.commands.shared_options",
        "replay.commands.replay_options",
        "replay.commands.session",
    }
    wrong = [
        str(found)
        for module, imports in IMPORTS.items()
        if module.startswith("replay.commands.") and module != "replay.commands.progress"
        for found in imports
        if not found.inside_function
        and found.name not in light
        and found.name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert not wrong


def modules_after(program: str) -> set[str]:
    """Top-level names in sys.modules after a program has run in a fresh interpreter."""
    report = "; import sys; print(' '.join(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program + report], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_help_imports_nothing_heavy() -> None:
    loaded = modules_after("from replay.commands.main import main; assert main(['--help']) == 0")
    assert "click" in loaded
    assert not loaded & (HOMES.keys() | EVERYWHERE | {"profiler_merge"})


def test_importing_every_module_imports_nothing_heavy() -> None:
    """Without a compiled core or an optional package installed, every module can still be imported."""
    names = [name for name in sorted(SOURCES) if not name.endswith(("_child", ".compiled"))]
    loaded = modules_after(f"import importlib; [importlib.import_module(name) for name in {names!r}]")
    assert "numpy" in loaded
    assert not loaded & HOMES.keys()
