"""The readers, and the commands that go through them: what each does with an input, and whether its answer holds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxt_replay.profiler_merge.analysis.named_tables import CONTENTS
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.profiler_merge.darshan.counters import COUNTER_MODULES, read_counters, read_lustre
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, read_dxt
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.profiler_merge.profiles.spans import profile_spans
from dxt_replay.profiler_merge.tracers.dftracer import read_dftracer
from dxt_replay.profiler_merge.tracers.requests import read_op_logs, read_request_logs
from dxt_replay.profiler_merge.tracers.strace import read_strace
from dxt_replay.replay.regress.record import read_record
from dxt_replay.replay.simulation.model import read_storage_model
from dxt_replay.traces.plain import plain
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.workloads.source import read_workload
from tests.replay.target.test_stage import manifest_of

Command = tuple[str, ...]


class WrongAnswerError(Exception):
    """Two readers of one input, or two readings of it, do not agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A reader.

    read: all that it finds in the input in a folder. Raises: DxtReplayError where the input is refused.
    commands: command lines over the input, in which `{}` is the folder.
    changeable: names of the files of an input that are changed.
    damage: words by which a warning says that a part of the input is damaged and left out.
    """

    name: str
    read: Callable[[Path], Any]
    commands: tuple[Command, ...]
    changeable: re.Pattern[str] = re.compile("")
    damage: tuple[str, ...] = ()

    def warned(self, answer: Any) -> bool:
        """Whether the last part of an answer, its warnings, says so."""
        return any(word in text for text in answer[-1] for word in self.damage) if self.damage else False


def digest(value: Any) -> str:
    """A digest of all that an answer holds."""
    return hashlib.sha256(repr(plain(value)).encode("utf-8", "surrogatepass")).hexdigest()


def _darshan(folder: Path) -> Any:
    log = open_log(folder / "job.darshan")
    return [
        log.job,
        dict(log.names),
        dict(log.modules),
        [list(read_dxt(log, module)) for module in DXT_MODULES],
        [read_counters(log, module) for module in COUNTER_MODULES],
        list(read_lustre(log)),
        log.warnings,
    ]


def _profile(folder: Path) -> Any:
    profile = read_profile(sorted(folder.iterdir()))
    return [profile.epoch_start_ns, profile.start_ns, profile.end_ns, profile_spans(profile)]


def _traced(read: Callable[[list[Path]], Any]) -> Callable[[Path], Any]:
    def answer(folder: Path) -> Any:
        job = read(sorted(folder.iterdir()))
        return [job.paths, job.of_rank(0), job.warnings]

    return answer


def _requests(read: Callable[[list[Path]], Any]) -> Callable[[Path], Any]:
    def answer(folder: Path) -> Any:
        found = read(sorted(folder.iterdir()))
        return [found.rows, found.paths, found.sizes, found.received, found.warnings]

    return answer


def _capture(folder: Path) -> Any:
    capture = open_capture(folder / "c.capture")
    tables = [each.to_pydict() for each in (*capture.operations(), capture.files, capture.spans, capture.hdf5)]
    usage = [sorted(map(str, capture.usage(rank).to_pylist())) for rank in capture.ranks]
    return [capture.info, tables, usage, capture.time_span_ns]


_MERGES = (("merge", "{input}", "-o", "{folder}/o.capture"),)
_LOG = "{folder}/../log.darshan"
_PROFILE = (("merge", _LOG, "--profile", "{input}", "-o", "{folder}/o.capture"),)
_TWIN = ("--target", "{folder}/t")
_SHOWN = tuple(name for name in TABLES if name not in CONTENTS)
_TABLES = tuple(word for table in _SHOWN for word in ("--show", table))
_OF_CAPTURE: tuple[Command, ...] = (
    ("summary", "{input}", *_TABLES),
    ("verify", "{input}"),
    ("summary", "{input}", "--by", "file", "--json"),
    ("summary", "{input}", "--show", "files", "-o", "-"),
    ("report", "{input}", "-o", "{folder}/o.html"),
    ("stage", "{input}", *_TWIN, "--dry-run"),
    ("stage", "{input}", *_TWIN),
    ("run", "{input}", *_TWIN, "-o", "{folder}/o.capture", "--pace", "none", "--api", "null"),
    ("compare", "{input}", "{input}"),
    ("compare", "{folder}/../sound.capture", "{input}"),
    ("simulate", "{input}", "--storage", "nvme"),
    ("transform", "{input}", "-o", "{folder}/o.capture", "--readers", "2"),
    ("transform", "{input}", "-o", "{folder}/o.capture", "--ranks", "4"),
    ("fit", "{input}", "-o", "{folder}/o.yaml"),
    ("anonymize", "{input}", "-o", "{folder}/o.capture"),
    *(
        ("export", "{input}", "--to", kind, "-o", f"{{folder}}/o.{kind}")
        for kind in ("darshan", "chrome", "csv", "fio")
    ),
)

_STAGED = "{folder}/c.capture"

TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="darshan", read=_darshan, commands=(*_MERGES, ("summary", "{input}")),
            damage=("left out", "is damaged"),
        ),
        Target(name="xplane", read=_profile, commands=_PROFILE),
        Target(name="kineto", read=_profile, commands=_PROFILE),
        Target(
            name="dftracer", read=_traced(read_dftracer), commands=_MERGES,
            damage=("cut off: ", "damaged: ", "damaged line"),
        ),
        Target(
            name="strace", read=_traced(read_strace), commands=_MERGES,
            damage=("cut off: ", "damaged: ", "damaged line"),
        ),
        Target(name="marks", read=_profile, commands=_PROFILE),
        Target(name="requests", read=_requests(read_request_logs), commands=_MERGES),
        Target(name="s3dlio", read=_requests(read_op_logs), commands=_MERGES),
        Target(
            name="workload", read=lambda folder: read_workload(folder / "a.yaml"),
            commands=(
                ("generate", "{input}", "dataset.num_files_train=4", "train.epochs=1", "-o", "{folder}/o.capture"),
            ),
        ),
        Target(
            name="storage-model", read=lambda folder: read_storage_model(folder / "a.yaml"),
            commands=(("simulate", "{folder}/../sound.capture", "--storage", "{input}"),),
        ),
        Target(name="capture", read=_capture, commands=_OF_CAPTURE),
        Target(
            name="manifest", read=lambda folder: manifest_of(folder / "t"),
            commands=(
                ("stage", _STAGED, *_TWIN),
                ("stage", _STAGED, *_TWIN, "--remove"),
                ("run", _STAGED, *_TWIN, "-o", "{folder}/o.capture", "--pace", "none"),
            ),
            changeable=re.compile("manifest"),
        ),
        Target(
            name="record",
            read=lambda folder: [read_record(path) for path in sorted(folder.iterdir())],
            commands=(("history", "{folder}"), ("history", "{folder}", "--json")),
        ),
    )
}  # fmt: skip
