"""How faithful a replay is, and whether one file system is slower than another."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from replay.interface.captures import CaptureOrPath, opened
from replay.interface.merging import PathLike, PathMaps
from replay.interface.replays import RunChoices, pacing_of, run_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from replay.fidelity.compare import Comparison
    from replay.fidelity.workload_verdict import Thresholds
    from replay.ranks.comm import Communicator
    from replay.regression.comparison import Regression
    from replay.regression.experiment import Experiment
    from replay.run.process import Progress


def compare(
    source: CaptureOrPath,
    replay: CaptureOrPath,
    thresholds: Thresholds | None = None,
    *,
    different_runs: bool = False,
) -> Comparison:
    """Compare a replay with its source: did it do the same work, and how fast was the storage?

        print(dxt_replay.compare("run.capture", "replay.capture").headline)

    `different_runs`: neither capture need be a replay of the other; then nothing is judged.
    Raises: UsageError for two captures in the wrong order or that are not source and replay; CaptureError.
    """
    from replay.fidelity.compare import THRESHOLDS
    from replay.fidelity.compare import compare as compare_captures
    from traces.store.relation import check_pair

    with opened(source) as recorded, opened(replay) as replayed:
        relation = check_pair(recorded, replayed, different_runs=different_runs)
        return compare_captures(recorded, replayed, thresholds or THRESHOLDS, relation=relation)


def regress(
    capture: CaptureOrPath,
    baseline: PathLike,
    candidate: PathLike,
    *,
    repeats: int = 10,
    warmup: int = 1,
    threshold_pct: float = 5.0,
    alpha: float = 0.05,
    seed: int | None = None,
    metric: str | None = None,
    stage: bool = True,
    cold: bool = True,
    output: PathLike | None = None,
    baseline_maps: PathMaps | None = None,
    candidate_maps: PathMaps | None = None,
    force: bool = False,
    on_staging: Callable[[int, int], None] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    comm: Communicator | None = None,
    **choices: Unpack[RunChoices],
) -> Regression:
    """Replay a capture on two targets in turn, and judge whether the application is slower on `candidate`.

    `repeats` pairs of runs in random order; `threshold_pct`: the smallest change that matters; `alpha`: probability of
    a false alarm. `stage`: stage the twins where they are absent. `output`: keep the replays in that directory;
    `force` replaces earlier ones there.

        dxt_replay.regress("run.capture", "/lustre/old/twin", "/lustre/new/twin").verdict

    Raises: UsageError for numbers out of range; TargetError; ReplayError.
    """
    from replay.ranks.comm import connect, first_does, together
    from replay.ranks.stopping import unwind_on_signals
    from replay.regression import experiment as module
    from replay.regression.interval_verdict import Rule

    comm = comm or connect()
    keep = None if output is None else Path(output)
    if choices.get("pace") is None:
        choices.pop("pace", None)

    def prepared() -> Experiment:
        chosen: RunChoices = {"pace": module.default_pace(source).value, **choices}
        options = partial(run_options, source, cold=cold, force=force, **chosen)
        experiment = module.Experiment(
            baseline=options(baseline, maps=baseline_maps),
            candidate=options(candidate, maps=candidate_maps),
            repeats=repeats,
            warmup=warmup,
            seed=secrets.randbits(32) if seed is None else seed,
            rule=Rule(threshold_pct=threshold_pct, alpha=alpha),
            metric=metric,
            keep=keep,
        )
        module.check_outputs(experiment)
        if stage:
            module.stage_all(module.plan_staging(source, experiment), on_staging)
        return experiment

    undecided: RunChoices = {"pace": "think"}  # whose options are those of every pace
    together(comm, lambda: pacing_of(capture, {**undecided, **choices}))
    with unwind_on_signals(), opened(capture, comm, keep) as source:
        experiment = first_does(comm, prepared)
        result = module.run_experiment(source, experiment, comm, on_progress or _silent)
    everywhere: Regression = comm.broadcast(result)
    return everywhere


def _silent(*progress: object) -> None:
    """Progress that is not shown."""
