"""What the commands import: packages that take long to load, or that a light installation lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.traces.samples import sample
from tests.places import PYTHON_PATH, recorded

OPTIONAL = ("dask", "darshan", "distributed", "h5py", "mpi4py", "pandas", "plotly", "tensorflow")
"""Packages that only some features need."""

SLOW = (*OPTIONAL, "dateutil", "duckdb", "jinja2", "matplotlib", "polars", "pyarrow.acero", "scipy")
"""Packages that no command below may load."""

OF_TRAININGS = ("dxt_replay.replay.causal.storage_limit", "dxt_replay.profiler_merge.unprofiled")
OF_LOGS = ("dxt_replay.profiler_merge.darshan.jobs", "dxt_replay.profiler_merge.profiles.reading")
OF_RUNS = ("dxt_replay.replay.engine.issue", "dxt_replay.replay.run.story")
"""Modules that cost tens of ms, and are for captures of trainings, for logs, for replays."""

LIST = """
import sys
from dxt_replay.__main__ import main
status = main()
sys.__stderr__.write("loaded: " + " ".join(sys.modules))
sys.exit(status)
"""

WITHOUT = f"""
import sys
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent)
from dxt_replay.__main__ import main
sys.exit(main())
"""


def ended(program: str, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def loaded(*words: str | Path) -> set[str]:
    """The modules that a command has loaded when it ends."""
    done = ended(LIST, *words)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.partition("loaded: ")[2].split())


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of a small log without training steps."""
    made = tmp_path_factory.mktemp("light") / "c.capture"
    done = ended(WITHOUT, "merge", recorded("darshan-logs/sample-dxt-simple.darshan"), "-o", made)
    assert done.returncode == 0, done.stderr
    return made


def test_help_loads_no_package_for_arrays() -> None:
    assert not loaded("--help") & {*SLOW, *OF_LOGS, "numpy", "pyarrow", "msgspec"}


def test_a_merge_of_a_log_loads_what_it_needs(tmp_path: Path) -> None:
    found = loaded("merge", recorded("darshan-logs/sample-dxt-simple.darshan"), "-o", tmp_path / "c.capture")
    assert "pyarrow.parquet" in found
    assert not found & {*SLOW, *OF_TRAININGS, *OF_RUNS}


def test_a_summary_loads_what_it_needs(capture: Path) -> None:
    found = loaded("summary", capture)
    assert "pyarrow.parquet" in found
    assert not found & {*SLOW, *OF_TRAININGS, *OF_LOGS, *OF_RUNS}


def test_a_report_loads_what_it_needs(capture: Path, tmp_path: Path) -> None:
    found = loaded("report", capture, "-o", tmp_path / "r.html")
    assert {"pyarrow.parquet", "duckdb"} <= found  # its tables of sizes are a query
    assert not found & {*OPTIONAL, "dateutil", "matplotlib", "polars", "scipy", *OF_TRAININGS, *OF_LOGS, *OF_RUNS}


def test_a_training_is_merged_replayed_and_reported_without_the_optional_packages(tmp_path: Path) -> None:
    files, made, twin, again = sample("imagenet"), tmp_path / "c.capture", tmp_path / "twin", tmp_path / "r.capture"
    profiles = [word for path in files.profiles for word in ("--profile", path)]
    twin.mkdir()
    for words in (
        ["merge", files.log, *profiles, "-o", made],
        ["summary", made],
        ["stage", made, "--target", twin, "--sparse"],
        ["run", made, "--target", twin, "-o", again, "--pace", "none"],
        ["compare", made, again],
        ["report", made, again, "-o", tmp_path / "r.html"],
    ):
        done = ended(WITHOUT, *words)
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "r.html").stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "variables", "remedy"),
    [
        (["run", "{capture}", "--target", "{twin}", "-o", "{new}"], {"PMI_RANK": "0"}, "'dxt-replay[mpich]'"),
        (["run", "{capture}", "--target", "{twin}", "-o", "{new}", "--api", "mpiio"], {}, "'dxt-replay[mpich]'"),
        (["summary", "{capture}", "--dask", "localhost:1"], {}, "'dxt-replay[dask]'"),
    ],
    ids=["mpiexec", "mpiio", "dask"],
)
def test_the_error_without_an_optional_package_says_how_to_install_it(
    capture: Path, tmp_path: Path, words: list[str], variables: dict[str, str], remedy: str
) -> None:
    twin = tmp_path / "twin"
    twin.mkdir(exist_ok=True)
    assert ended(WITHOUT, "stage", capture, "--target", twin, "--sparse").returncode == 0
    said = [word.format(capture=capture, twin=twin, new=tmp_path / "new.capture") for word in words]
    done = ended(WITHOUT, *said, **variables)
    assert done.returncode == 2
    assert f"not installed: pip install {remedy}" in done.stderr
