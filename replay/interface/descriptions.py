"""A capture as a workload description, and how near what that generates is to the capture."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.interface.replays import check_profiled
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.making import FitChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.plain import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.traces.store.reader import Capture
    from dxt_replay.workloads.description import Workload
    from dxt_replay.workloads.fit.fitted import Estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedWorkload(Result):
    """Result of `fit`.

    output: the YAML file. ranks: of the capture. keys: key of the description -> its value, and how that was found.
    workload: the description, checked as one that is read from a file.
    similarity: of the capture and what the description generates, as in `compare`, without the factors that storage
    decides; None where neither has I/O. notes: what is not known of the training loop.
    """

    output: Path
    ranks: int
    keys: Estimates
    workload: Workload
    similarity: float | None
    notes: tuple[str, ...]

    @property
    def closeness(self) -> str:
        """The similarity in one sentence."""
        known = "not known" if self.similarity is None else f"{self.similarity:.4f}"
        return f"similarity of what it generates on {self.ranks} ranks: {known}, without the factors of storage"

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay fit --json` prints."""
        return {
            "output": str(self.output),
            "keys": {key: {"value": value, "found": found} for key, (value, found) in self.keys.items()},
            "ranks": self.ranks,
            "similarity": self.similarity,
            "notes": list(self.notes),
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
    from dxt_replay.workloads.fit.fitted import fit as fit_observed
    from dxt_replay.workloads.fit.fitted import workload_of, workload_text
    from dxt_replay.workloads.fit.observation import observe

    batch, place = filled(FitChoices, choices)["batch"], Path(output)
    check_output(place, force=force)
    check_profiled(capture)
    with opened(capture) as source:
        seen = observe(source)
        keys = fit_observed(seen, batch=batch)
        workload = workload_of(keys)
        found = FittedWorkload(
            output=place,
            ranks=seen.ranks,
            keys=keys,
            workload=workload,
            similarity=_similarity(source, workload, seen.ranks),
            notes=seen.warnings,
        )
        head = [f"Fitted by dxt-replay to {source.named.name}; {found.closeness}.", *found.notes, ""]
    with new_file(place, force=force) as file:
        file.write(workload_text(keys, head).encode())
    return found


def _similarity(source: Capture, workload: Workload, ranks: int) -> float | None:
    from dxt_replay.replay.compare.comparison import compare
    from dxt_replay.traces.store.reader import open_capture
    from dxt_replay.traces.store.relation import Relation
    from dxt_replay.workloads.generate.generation import generate

    with tempfile.TemporaryDirectory(prefix="dxt-replay-fit-") as folder:
        place = Path(folder) / "generated.capture"
        generate(workload, ranks, place)
        return compare(source, open_capture(place), relation=Relation.DIFFERENT).similarity.workload_cosine
