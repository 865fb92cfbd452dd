"""`dxt-replay history`: records of experiments in order of time, and where their figures changed."""

from __future__ import annotations

from pathlib import Path

import click

from dxt_replay.replay.commands.shared_options import PATH, json_option
from dxt_replay.traces.errors import UsageError


@click.command()
@click.argument("records", nargs=-1, required=True, type=PATH)
@click.option(
    "--threshold", type=float, default=5.0, show_default=True, metavar="PCT", help="The smallest change that matters."
)
@click.option(
    "--alpha",
    type=float,
    default=0.05,
    show_default=True,
    help="Probability of a false change point, if all records lie within the threshold of each other.",
)
@click.option("--metric", metavar="NAME", help="Print the table of this metric.  [default: the one that decides]")
@json_option
def command(records: tuple[Path, ...], threshold: float, alpha: float, metric: str | None) -> None:
    """Show how the results of an experiment changed from record to record.

    RECORDS are files that `regress --record` wrote, or folders with such .json files. Records of the same work,
    options and directory are a series. At a change point the later runs differ from the earlier ones by more than
    --threshold. Beside it stand changes of the environment, such as another kernel or mount option.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer, of_json
    from dxt_replay.replay.history.history_sections import history_sections
    from dxt_replay.replay.regression.run_metrics import METRICS

    if metric is not None and metric not in METRICS:
        raise UsageError(f"--metric {metric!r}: choose {', '.join(METRICS)}")
    found = dxt_replay.history(*records, threshold_pct=threshold, alpha=alpha)
    answer(found, of_json(lambda document: history_sections(document, metric)))
