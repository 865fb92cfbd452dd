"""`dxt-replay history`: records of experiments in order of time, and where their figures changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import PATH, json_option
from dxt_replay.replay.options.choices import HistoryChoices


@click.command()
@click.argument("records", nargs=-1, required=True, type=PATH)
@family_options(HistoryChoices)
@json_option
def command(records: tuple[Path, ...], **choices: Any) -> None:
    """Show how the results of an experiment changed from record to record.

    RECORDS are files that `regress --record` wrote, or folders with such .json files. Records of the same work,
    options and directory are a series. At a change point the later runs differ from the earlier ones by more than
    --threshold. Beside it stand changes of the environment, such as another kernel or mount option.

    Exits 1 if the newest record of a series holds a change for the worse: by the metric that decides, the last change
    is a regression. Else 0.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.regress.sections import history_sections

    found = dxt_replay.history(*records, **choices)
    answer(found, history_sections)
    if found.regressed:
        raise SystemExit(1)
