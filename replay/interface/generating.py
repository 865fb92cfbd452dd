"""Generates captures from descriptions of workloads."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, named, opened
from dxt_replay.replay.interface.merging import merge
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.making import GenerateChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.workers.workers import Work, Workers, workers_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.fidelity.run_check import RunCheck
    from dxt_replay.traces.store.reader import Capture
    from dxt_replay.workloads.description import Workload
    from dxt_replay.workloads.generate.generation import Generated
    from dxt_replay.workloads.listing import ListedWorkload
    from dxt_replay.workloads.note import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedCapture:
    """Result of `generate`. notes: parts of the description that the capture does not follow, with the reason."""

    capture: Path
    workload: Workload
    notes: tuple[Note, ...]
    generated: Generated

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay generate --json` prints."""
        return {
            "capture": str(self.capture),
            "workload": self.workload.source.name,
            "reading": self.workload.reading,
            "overrides": list(self.workload.source.overrides),
            **self.generated.as_json(),
            "notes": [asdict(note) for note in self.notes],
        }


@takes(GenerateChoices)
def generate(
    workload: PathLike,
    ranks: int,
    output: PathLike,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    workers: int | None = None,
    executor: Work = None,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    **choices: Unpack[GenerateChoices],
) -> GeneratedCapture:
    """Generate the I/O of a workload on `ranks` ranks, without running it, as the capture `output`.

    `workload`: a YAML file of DLIO, a folder with the `.hydra/config.yaml` of one of its runs, or a shipped name (see
    `workloads`). `overrides`: keys that replace those of the file. `workers` processes or an `executor` share the
    work; the capture does not depend on them. `on_progress` gets ranks done, and all.

        dxt_replay.generate("unet3d_h100", 8, "unet3d.capture", overrides={"dataset.num_files_train": 64})

    Raises: UsageError for a description that is not one, or contradicts itself; TargetError for `output`.
    """
    from dxt_replay.workloads.consistency import check_ranks
    from dxt_replay.workloads.generate.assumed_device import DEFAULT_DEVICE
    from dxt_replay.workloads.generate.generation import generate as write_capture
    from dxt_replay.workloads.override_text import override_text
    from dxt_replay.workloads.workload_source import read_workload

    chosen = filled(GenerateChoices, choices)
    if isinstance(overrides, Mapping):
        overrides = [override_text(key, value) for key, value in overrides.items()]
    found = read_workload(Path(workload), tuple(overrides), chosen["reading"])
    check_ranks(found.workload, ranks)
    with Workers(workers or 1) if executor is None else nullcontext(workers_of(executor)) as shared:
        generated = write_capture(
            found.workload,
            ranks,
            Path(output),
            seed=chosen["seed"],
            device=chosen["device"] or DEFAULT_DEVICE,
            workers=shared,
            force=force,
            on_progress=on_progress,
            notes=[note.line for note in found.notes if note.kind != "not I/O"],
        )
    return GeneratedCapture(capture=Path(output), workload=found.workload, notes=found.notes, generated=generated)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWorkload:
    """Result of `check_workload`: the generated capture, and its comparison with `run`, a path."""

    generated: GeneratedCapture
    run: Path
    check: RunCheck

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay generate --check RUN --json` prints."""
        return {
            "workload": self.generated.workload.source.name,
            "reading": self.generated.workload.reading,
            "overrides": list(self.generated.workload.source.overrides),
            "run": str(self.run),
            **self.check.as_json(),
        }


def check_workload(
    workload: PathLike,
    run: CaptureOrPath,
    *,
    ranks: int | None = None,
    output: PathLike | None = None,
    **choices: Any,
) -> CheckedWorkload:
    """Generate a workload, and compare the capture with a recording of a real run of it, file by file.

    `run`: a capture, a Darshan log, a trace of strace or DFTracer, or a folder of such files. `ranks`: None takes those
    of the run. `output`: keep the generated capture here. `choices`: as for `generate`. A real DLIO follows its code:
    choose the `reading` of its version.

        dxt_replay.check_workload("unet3d.yaml", "strace.out", reading="head").check.equal

    Raises: as `generate` and `merge`; UsageError for a run that uses no file of the workload.
    """
    from dxt_replay.replay.fidelity.run_check import check_run

    with tempfile.TemporaryDirectory(prefix="dxt-replay-") as folder:
        kept = Path(output) if output is not None else Path(folder) / "generated.capture"
        with _recorded(run, Path(folder) / "run.capture") as recorded:
            made = generate(workload, ranks or len(recorded.ranks), kept, **choices)
            with opened(kept) as generated:
                found = check_run(generated, recorded, _places(made.workload))
    return CheckedWorkload(generated=made, run=named(run), check=found)


@contextmanager
def _recorded(run: CaptureOrPath, merged: Path) -> Iterator[Capture]:
    """The capture of a run. `merged`: logs and traces are merged into this capture."""
    path = named(run)
    if (path / "capture.json").exists():
        with opened(run) as capture:
            yield capture
        return
    merge(path, merged)
    with opened(merged) as capture:
        yield capture


def _places(workload: Workload) -> dict[str, str]:
    """Kind of file -> beginning of the paths of its files, below the folder that the description names."""
    from dxt_replay.replay.fidelity.run_check import CHECKPOINT, EVALUATION, TRAIN
    from dxt_replay.workloads.data_set_files import absolute_folder

    data = absolute_folder(workload, workload.dataset.data_folder)
    saved = absolute_folder(workload, workload.checkpoint.checkpoint_folder)
    return {
        TRAIN: posixpath.join(data, "train", ""),
        EVALUATION: posixpath.join(data, "valid", ""),
        CHECKPOINT: posixpath.join(saved, "global_epoch"),
    }


def workloads() -> tuple[ListedWorkload, ...]:
    """The shipped workloads of DLIO and MLPerf Storage, and the eight applications of the DLIO paper.

    Each has a name, a title, files, bytes, the compute time of a step, and the bytes per second that a rank needs.

        [listed.name for listed in dxt_replay.workloads() if listed.bytes < 10**9]
    """
    from dxt_replay.workloads.listing import shipped_workloads

    return shipped_workloads()
