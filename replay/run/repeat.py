"""Repeats a replay, and measures how much its elapsed time varies."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dxt_replay.replay.ranks.comm import Communicator
from dxt_replay.replay.run.context import choose_layers_together, derive_context
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.process import Progress
from dxt_replay.replay.run.result import RunResult
from dxt_replay.replay.run.runner import run_replay
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.writer import check_capture_output


@dataclass(frozen=True, slots=True, kw_only=True)
class ElapsedTimes:
    """Elapsed times of several runs, seconds."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The runs in order; a stopped run is the last."""

    runs: tuple[RunResult, ...]

    @property
    def succeeded(self) -> bool:
        """Whether all runs succeeded."""
        return all(run.succeeded for run in self.runs)

    @property
    def elapsed_s(self) -> ElapsedTimes:
        """Of the runs that were neither stopped nor disturbed; of all runs without such a run."""
        whole = [run.elapsed_s for run in self.runs if not run.stopped and not run.disturbed]
        found = whole or [run.elapsed_s for run in self.runs]
        return ElapsedTimes(median=statistics.median(found), min=min(found), max=max(found))

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay run --repeat N --json` prints; `runs` has the objects of single runs."""
        return {
            "repeats": len(self.runs),
            "elapsed_s": asdict(self.elapsed_s),
            "runs": [run.as_json() for run in self.runs],
        }


def output_of(output: Path, number: int) -> Path:
    """Path of the capture of a run, counted from 1: `OUT.2.capture` beside `OUT.capture`."""
    return output.with_name(f"{output.stem}.{number}{output.suffix}")


def check_outputs(output: Path, times: int, *, force: bool = False) -> None:
    """Refuse the outputs of `times` runs before the first. Raises: TargetError when one exists and not `force`."""
    for path in [output] if times == 1 else [output_of(output, number) for number in range(1, times + 1)]:
        check_capture_output(path, force=force)


def run_repeatedly(
    capture: Capture,
    output: Path,
    options: RunOptions,
    comm: Communicator,
    times: int,
    report_progress: Callable[[Progress], None] = lambda progress: None,
) -> Repeats | None:
    """Replay `times` times from the same state: files of a run are created anew, and `cold` drops the twin's pages.

    Returns the results on process 0, None on the others. A stopped run is the last one.
    Raises: as `run_replay`. The captures of the earlier runs stay.
    """
    layers = choose_layers_together(capture, comm, api=options.api)
    context = derive_context(capture, comm, layers, options.pacing.pace)
    runs: list[RunResult] = []
    for number in range(1, times + 1):
        result = run_replay(capture, output_of(output, number), options, comm, report_progress, context)
        if result is not None:
            runs.append(result)
        if comm.broadcast(result is not None and result.stopped):
            break
    return Repeats(runs=tuple(runs)) if runs else None
