"""Generates captures from descriptions of workloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.making import GenerateChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.plain import Result
from dxt_replay.traces.workers import Work, Workers, workers_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.workloads.description import Note, Workload
    from dxt_replay.workloads.generate.generation import Generated
    from dxt_replay.workloads.source import ListedWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedCapture(Result):
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
    from dxt_replay.workloads.generate.clock import DEFAULT_DEVICE
    from dxt_replay.workloads.generate.generation import generate as write_capture
    from dxt_replay.workloads.source import override_text, read_workload
    from dxt_replay.workloads.values import check_ranks

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


def workloads() -> tuple[ListedWorkload, ...]:
    """The shipped workloads of DLIO and MLPerf Storage, and the eight applications of the DLIO paper.

    Each has a name, a title, files, bytes, the compute time of a step, and the bytes per second that a rank needs.

        [listed.name for listed in dxt_replay.workloads() if listed.bytes < 10**9]
    """
    from dxt_replay.workloads.source import shipped_workloads

    return shipped_workloads()
