"""What `import dxt_replay` offers, and how it finds the packages beside it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dxt_replay
from tests.places import ROOT

FACE = ROOT / "replay" / "interface" / "__init__.py"


def test_every_name_is_found_and_documented() -> None:
    for name in dxt_replay.__all__:
        value = getattr(interface, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name
    assert set(dxt_replay.__all__) <= set(dir(interface))


def test_every_function_shows_an_example() -> None:
    functions = [name for name in dxt_replay.__all__ if inspect.isfunction(getattr(interface, name))]
    assert "open_capture" in functions
    without = [name for name in functions if f"{name}(" not in getattr(interface, name).__doc__]
    assert set(without) <= {"anchor", "sample"}


def test_type_checkers_see_what_python_finds() -> None:
    """The names are listed for people, for Python and for type checkers: three times the same."""
    tree = ast.parse(FACE.read_text(encoding="utf-8"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        (str(node.module), alias.name)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {(module, name) for name, module in dxt_replay._HOME_OF.items()}
    assert {name for _, name in imported} | {"ForeignPackageError"} == set(dxt_replay.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sumary'"):
        _ = dxt_replay.sumary


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder for the path in which the packages lie as in a wheel, `dxt_replay` among them."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("traces", "profiler_merge", "replay"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "dxt_replay").symlink_to(ROOT / "replay" / "interface")
    return folder


def run_python(program: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with this search path before all else, outside of the checkout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", program], cwd="/", env=environment, capture_output=True, text=True, check=False
    )


def test_both_names_give_the_same_objects(installed: Path) -> None:
    program = (
        "import json, dxt_replay, dxt_replay.replay.interface as other; "
        "print(json.dumps([name for name in dxt_replay.__all__ if name != 'ForeignPackageError' "
        "and getattr(dxt_replay, name) is not getattr(other, name)]))"
    )
    done = run_python(program, installed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_importing_it_imports_nothing_heavy(installed: Path) -> None:
    done = run_python("import sys, dxt_replay; print(sorted({name.split('.')[0] for name in sys.modules}))", installed)
    assert done.returncode == 0, done.stderr
    assert not {"numpy", "pyarrow", "pandas", "plotly", "click"} & set(ast.literal_eval(done.stdout))


@pytest.mark.parametrize("name", ["traces", "replay", "profiler_merge"])
def test_another_package_of_the_name_is_said_in_one_line(name: str, installed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / name
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('"""Somebody else\'s."""\n')
    done = run_python("import dxt_replay; dxt_replay.open_capture", other.parent, installed)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "ForeignPackageError" in last
    assert f"another project's package {name!r}" in last
    assert str(other) in last
    assert "virtual environment of its own" in last

    done = run_python("import sys; from dxt_replay.start import main; sys.exit(main())", other.parent, installed)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("dxt-replay: error: Python finds another project's package")


def test_a_package_that_was_overwritten_in_place_is_noticed(tmp_path: Path) -> None:
    """As pip does when another distribution has files of the same names: only `__init__.py` is the other's."""
    site = tmp_path / "site"
    for name in ("traces", "profiler_merge", "replay"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_bytes((ROOT / name / "__init__.py").read_bytes())
    (site / "dxt_replay").mkdir()
    for file in ("__init__.py", "packages.py"):
        (site / "dxt_replay" / file).write_bytes((ROOT / "replay" / "interface" / file).read_bytes())
    assert run_python("from dxt_replay import ForeignPackageError", site).returncode == 0
    (site / "traces" / "__init__.py").write_text('"""Unevenly spaced time series."""\n')
    assert "another project's package 'traces'" in run_python("from dxt_replay import merge", site).stderr


def test_the_program_starts(installed: Path) -> None:
    program = "import sys; from dxt_replay.start import main; sys.argv[1:] = ['--version']; sys.exit(main())"
    done = run_python(program, installed)
    assert done.returncode == 0, done.stderr
    assert dxt_replay.VERSION in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("dxt_replay") is None, reason="dxt_replay is not installed here")
def test_it_is_installed_under_its_name() -> None:
    import dxt_replay  # type: ignore[import-not-found,unused-ignore]

    assert dxt_replay.open_capture is dxt_replay.open_capture
