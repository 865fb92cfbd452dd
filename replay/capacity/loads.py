"""The captures of a search for the capacity, one for each number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """The captures in `folder`, by number of ranks. Each is made when it is first needed.

    make: writes the capture with a number of ranks to a path.
    ranks, compute_ns: of the recorded capture, or of one rank of a workload; compute is the sum over the ranks.
    strong: the ranks share the recorded work; otherwise each does as much as recorded, with its own files.
    own_names: the file names of a load depend on its number of ranks. Copies of a recorded rank keep their names, so
    a larger load stages only the additional files.
    """

    folder: Path
    make: Callable[[int, Path], object]
    ranks: int
    compute_ns: int
    strong: bool
    own_names: bool

    def of(self, ranks: int) -> Path:
        """The capture with so many ranks. Raises: UsageError where the work cannot be shared among them."""
        path = load_path(self.folder, ranks)
        if not path.exists():
            self.make(ranks, path)
        return path

    def utilisation_pct(self, replay: Capture, ranks: int) -> float:
        """Accelerator utilisation of a replay with so many ranks, per cent: of a benchmark by its own rule, else the
        recorded compute as a share of the replayed training loops. Raises: CaptureError when a part is damaged."""
        from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
        from dxt_replay.profiler_merge.analysis.overlap import overlap
        from dxt_replay.traces.benchmark_run import benchmark_run
        from dxt_replay.traces.measures.span_times import computed_in_loops

        benchmark = benchmark_run(replay.info)
        figures = None if benchmark is None else benchmark_figures(overlap(replay).steps, benchmark)
        if figures is not None:
            return figures.utilisation_pct
        copies = 1.0 if self.strong else ranks / self.ranks
        loops_ns = computed_in_loops(replay.spans)[1]
        return 100.0 * self.compute_ns * copies / loops_ns if loops_ns else 0.0


def load_path(folder: Path, ranks: int) -> Path:
    """Path of the capture with so many ranks."""
    return folder / f"{ranks}-ranks.capture"


def check_empty(folder: Path | None) -> None:
    """Raises: TargetError where `folder` holds anything, such as the captures of another search."""
    try:
        if folder is not None and any(folder.iterdir()):
            raise TargetError(f"{folder} is not empty: give a directory that is empty or does not exist")
    except FileNotFoundError:
        return
    except OSError as error:
        raise TargetError(f"cannot keep captures in {folder}: {error.strerror}") from error
