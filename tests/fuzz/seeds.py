"""Where the mutations begin: small inputs of each format, and what the product ships."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from dxt_replay import stage
from dxt_replay.replay.simulation import model as storage_models
from dxt_replay.workloads.source import SHIPPED
from tests.fuzz.mutations import Files
from tests.places import ROOT
from tests.replay.regress.builder import record

SOUND, CORPUS = (Path(__file__).with_name(name) for name in ("sound", "corpus"))
"""sound/TARGET/N is a folder with an input. Those of logs and profiles hold every module, compression and generation of
the clock; of the captures the second is as another program writes it, known by its rows alone. corpus/TARGET/NAME is an
input that once found a defect, a file or a folder."""

CAPTURE = SOUND / "capture" / "0" / "c.capture"
"""Two ranks of a training with three steps, a checkpoint, a rename and an HDF5 data set."""


def seeds(target: str) -> list[Files]:
    """The inputs that a target begins with: kept in `SOUND`, made here, and kept in `CORPUS`."""
    with tempfile.TemporaryDirectory() as scratch:
        made = _MADE.get(target, lambda _: [])(Path(scratch))
    sound, once = (sorted((folder / target).glob("*")) for folder in (SOUND, CORPUS))
    return [*map(files_in, sound), *made, *map(files_in, once)]


def files_in(path: Path) -> Files:
    """A file by its name, or all files of a folder by their paths in it."""
    if path.is_file():
        return {path.name.partition("@")[2] or path.name: path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def _shipped(folder: Path) -> list[Files]:
    return [{"a.yaml": path.read_bytes()} for path in sorted(folder.glob("*.yaml"))]


def _manifest(scratch: Path) -> list[Files]:
    shutil.copytree(CAPTURE, scratch / "c.capture")
    (scratch / "t").mkdir()
    stage(scratch / "c.capture", target=scratch / "t")
    return [files_in(scratch)]


_MADE: dict[str, Callable[[Path], list[Files]]] = {
    "marks": lambda _: [files_in(path) for path in sorted((ROOT / "tests/data/marks").glob("[hkg]*/profile/*s"))],
    "workload": lambda _: _shipped(SHIPPED),
    "storage-model": lambda _: _shipped(Path(storage_models.__file__).with_name("shipped")),
    "manifest": _manifest,
    "record": lambda _: [{f"{day}.json": record(day=day).encoded() for day in range(3)}],
}
