"""`dxt-replay compare`: how faithful a replay is."""

from __future__ import annotations

from pathlib import Path

import click

from replay.commands.options import capture_argument, json_option


@click.command()
@capture_argument("source")
@capture_argument("replay")
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 1),
    default=0.95,
    show_default=True,
    metavar="S",
    help="Least similarity that passes.",
)
@click.option(
    "--max-elapsed-error",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="PCT",
    help="Largest error of the elapsed time that passes, in per cent.",
)
@click.option(
    "--max-drift",
    type=click.FloatRange(0),
    default=20.0,
    show_default=True,
    metavar="PPM",
    help="Largest drift that passes, in parts per million.",
)
@json_option
def command(
    source: Path, replay: Path, fail_under: float, max_elapsed_error: float, max_drift: float, as_json: bool
) -> None:
    """Compare a replay with its source: similarity, equality, times.

    SOURCE and REPLAY are captures or .darshan logs. Exits 1 when a block fails.
    """
    from replay.commands.options import check_order, opened
    from replay.commands.output import print_json
    from replay.commands.progress import status
    from replay.fidelity.compare import Thresholds, compare

    thresholds = Thresholds(similarity=fail_under, elapsed_error_pct=max_elapsed_error, drift_ppm=max_drift)
    with opened(source) as recorded, opened(replay) as replayed:
        check_order(recorded, replayed)
        with status("comparing"):
            comparison = compare(recorded, replayed, thresholds)
    if as_json:
        print_json(comparison.as_json())
    else:
        from replay.show.terminal import print_comparison

        print_comparison(comparison.as_json())
    if not comparison.passed:
        raise SystemExit(1)
