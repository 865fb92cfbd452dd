"""`dxt-replay compare`: compare a replay with its source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import PATH, details_option, json_option, worker_options
from dxt_replay.replay.options.looking import PairChoices, ThresholdChoices

if TYPE_CHECKING:
    from dxt_replay.traces.workers import Workers


@click.command()
@click.argument("source", type=PATH, required=False)
@click.argument("replay", type=PATH, required=False)
@family_options(ThresholdChoices)
@family_options(PairChoices)
@worker_options
@details_option
@json_option
def command(
    source: Path | None,
    replay: Path | None,
    floor: tuple[tuple[Path, Path], ...],
    workers: Workers,
    **choices: Any,
) -> None:
    """Compare a replay with its source: did it do the same work, and how fast was the storage?

    SOURCE and REPLAY are captures or .darshan logs. Exits 1 when the replay did other work than recorded, or did it at
    other times than due. How fast the storage was is a measurement and never fails. `compare --floor A B` alone prints
    how far two runs of the same application, or two replays, are from each other.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.show.compare import comparison_sections, floor_sections

    if source is None and floor:
        with status("comparing"):
            noise = dxt_replay.noise_floor(*floor)
        answer(noise, floor_sections)
        return
    if source is None or replay is None:
        raise click.UsageError(
            "give the recorded capture and its replay, or --floor A B: two runs of one application",
            click.get_current_context(),
        )
    different_runs = choices.pop("different_runs")
    with status("comparing"):
        comparison = dxt_replay.compare(
            source,
            replay,
            dxt_replay.Thresholds(**choices),
            different_runs=different_runs,
            floor=floor,
            executor=workers,
        )
    answer(comparison, comparison_sections)
    if not comparison.passed:
        raise SystemExit(1)
