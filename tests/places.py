"""Where the tests find the checkout, small recordings in it, and whole ones that lie beside it on some machines."""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dxt_replay"
"""The installed package: links to the folders of a checkout, real folders in a source archive."""

PYTHON_PATH = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
"""PYTHONPATH of a process that imports this checkout's package and its tests, whatever is installed."""

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
needs_mpi = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")

SHARED = ROOT.parent / "shared"
CAPTURES = SHARED / "captures"
SMALL = ROOT / "tests" / "data"


def recorded(path: str) -> Path:
    """A recording beside the checkout, else what the checkout has of it; without either the test is skipped."""
    found = next((root / path for root in (SHARED, SMALL) if (root / path).exists()), None)
    return pytest.skip(f"{path} is neither here nor beside the checkout") if found is None else found


def recordings(pattern: str) -> list[Path]:
    """The recordings of a glob pattern beside the checkout, else those in it, sorted."""
    return sorted(SHARED.glob(pattern)) or sorted(SMALL.glob(pattern))


def open_below(directory: Path) -> list[str]:
    """What this process has open below a directory, removed files too (Linux)."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(descriptor))
    return [name for name in found if name.startswith(f"{directory}/")]
