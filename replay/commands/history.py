"""`dxt-replay history`: records of experiments in order of time, and where their figures changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import PATH, json_option
from dxt_replay.replay.options.choices import HistoryChoices
from dxt_replay.traces.errors import UsageError


@click.command()
@click.argument("records", nargs=-1, required=True, type=PATH)
@family_options(HistoryChoices)
@click.option("--metric", metavar="NAME", help="Print the table of this metric.  [default: the one that decides]")
@json_option
def command(records: tuple[Path, ...], metric: str | None, **choices: Any) -> None:
    """Show how the results of an experiment changed from record to record.

    RECORDS are files that `regress --record` wrote, or folders with such .json files. Records of the same work,
    options and directory are a series. At a change point the later runs differ from the earlier ones by more than
    --threshold. Beside it stand changes of the environment, such as another kernel or mount option.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.history.history_sections import history_sections
    from dxt_replay.replay.regression.run_metrics import METRICS

    if metric is not None and metric not in METRICS:
        raise UsageError(f"--metric {metric!r}: choose {', '.join(METRICS)}")
    found = dxt_replay.history(*records, **choices)
    answer(found, lambda history: history_sections(history, metric))
