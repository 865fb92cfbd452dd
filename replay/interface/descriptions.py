"""A capture as a workload description, and how near that is to the capture."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.interface.replays import check_profiled
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.making import FitChoices
from dxt_replay.replay.options.option import filled, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.traces.store.reader import Capture
    from dxt_replay.workloads.description import Workload
    from dxt_replay.workloads.fit.closeness import Closeness
    from dxt_replay.workloads.fit.fitted import Fit
    from dxt_replay.workloads.fit.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedWorkload:
    """Result of `fit`.

    output: the YAML file. found: the estimate of each key with its evidence, and what no key expresses.
    workload: the description, checked as one that is read from a file.
    closeness: how near the capture is that the description generates; None where none was generated.
    """

    output: Path
    found: Fit
    workload: Workload
    closeness: Closeness | None

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay fit --json` prints."""
        return {
            "output": str(self.output),
            "keys": {
                each.key: {"value": each.value, "found": each.found, "error": each.error}
                for each in self.found.estimates
            },
            "not_expressed": [
                {"operations": each.operations, "bytes": each.bytes, "reason": each.reason}
                for each in self.found.unexpressed
            ],
            "operations": self.found.operations,
            "bytes": self.found.bytes,
            "ranks": self.found.ranks,
            "closeness": None if self.closeness is None else self.closeness.as_json(),
            "dlio": [asdict(run) for run in self.found.dlio],
            "notes": list(self.found.notes),
        }


@takes(FitChoices)
def fit(
    capture: CaptureOrPath, output: PathLike, *, force: bool = False, **choices: Unpack[FitChoices]
) -> FittedWorkload:
    """Write the DLIO description whose I/O is nearest to a capture: a YAML file with the evidence on every line.

        dxt_replay.fit("run.capture", "run.yaml").workload.reader.batch_size

    Raises: UsageError when the capture has no training steps; CaptureError when the loop neither reads nor saves.
    """
    from dxt_replay.traces.output import check_output, new_file
    from dxt_replay.workloads.fit.closeness import table_lines
    from dxt_replay.workloads.fit.fitted import fit as fit_observed
    from dxt_replay.workloads.fit.observation import observe
    from dxt_replay.workloads.fit.workload_text import workload_text

    chosen = filled(FitChoices, choices)
    place, reading = Path(output), chosen["reading"]
    check_output(place, force=force)
    check_profiled(capture)
    with opened(capture) as source:
        seen = observe(source)
        found = fit_observed(seen, batch=chosen["batch"])
        workload = found.workload()
        near = _closeness(source, seen, found, found.workload(reading)) if chosen["check"] else None
        head = [
            f"Fitted by dxt-replay to {source.named.name}: {found.ranks} ranks.",
            *(
                []
                if near is None
                else ["", f"What it generates ({reading}), beside the capture:", *table_lines(near), ""]
            ),
            *(each.sentence(found.operations, found.bytes) for each in found.unexpressed),
            *found.notes,
            "",
        ]
    with new_file(place, force=force) as file:
        file.write(workload_text(found.estimates, head).encode())
    return FittedWorkload(output=place, found=found, workload=workload, closeness=near)


def _closeness(source: Capture, seen: Observation, found: Fit, workload: Workload) -> Closeness:
    """Similarity of the capture that the description generates, for as many ranks and a device like the capture's."""
    from dxt_replay.traces.store.reader import open_capture
    from dxt_replay.workloads.fit.closeness import closeness, device_of
    from dxt_replay.workloads.generate.generation import generate

    with tempfile.TemporaryDirectory(prefix="dxt-replay-fit-") as folder:
        place = Path(folder) / "generated.capture"
        generate(workload, found.ranks, place, device=device_of(seen))
        return closeness(source, open_capture(place), seen, found.data, found.saves)
