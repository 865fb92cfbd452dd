"""What `import dxt_replay` offers."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dxt_replay
from tests.places import ROOT

STUB = ROOT / "src" / "dxt_replay" / "__init__.pyi"


def test_every_name_is_found_and_documented() -> None:
    for name in dxt_replay.__all__:
        value = getattr(dxt_replay, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name
    assert set(dxt_replay.__all__) <= set(dir(dxt_replay))


def test_every_function_shows_an_example() -> None:
    functions = [name for name in dxt_replay.__all__ if inspect.isfunction(getattr(dxt_replay, name))]
    assert "open_capture" in functions
    without = [name for name in functions if f"{name}(" not in getattr(dxt_replay, name).__doc__]
    assert set(without) <= {"anchor", "sample"}


def test_the_stub_exports_just_what_it_imports() -> None:
    """A type checker takes the names of `__all__`, Python those of the imports."""
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    imported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    (listed,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    assert sorted(imported) == sorted(listed)
    assert sorted(listed) == sorted(dxt_replay.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sumary'"):
        _ = dxt_replay.sumary


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder for the path in which the package lies as in a wheel."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "dxt_replay").symlink_to(ROOT / "src" / "dxt_replay")
    return folder


def run_python(program: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with this search path before all else, outside of the checkout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", program], cwd="/", env=environment, capture_output=True, text=True, check=False
    )


def test_importing_it_imports_nothing_heavy(installed: Path) -> None:
    done = run_python("import sys, dxt_replay; print(sorted({name.split('.')[0] for name in sys.modules}))", installed)
    assert done.returncode == 0, done.stderr
    assert not {"numpy", "pyarrow", "pandas", "plotly", "click"} & set(ast.literal_eval(done.stdout))


def test_the_program_starts(installed: Path) -> None:
    program = "import sys; from dxt_replay.__main__ import main; sys.argv[1:] = ['--version']; sys.exit(main())"
    done = run_python(program, installed)
    assert done.returncode == 0, done.stderr
    assert dxt_replay.VERSION in done.stdout


def test_packages_of_others_are_not_in_the_way(installed: Path, tmp_path: Path) -> None:
    """PyPI has projects called traces and replay: neither name is ours at the top level."""
    for name in ("traces", "replay", "profiler_merge", "workloads"):
        (tmp_path / "other" / name).mkdir(parents=True)
        (tmp_path / "other" / name / "__init__.py").write_text('raise ImportError("somebody else\'s")\n')
    done = run_python("import dxt_replay; print(dxt_replay.open_capture.__module__)", tmp_path / "other", installed)
    assert done.stdout == "dxt_replay.replay.commands.captures\n", done.stderr
