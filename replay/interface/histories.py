"""Shows results of experiments over time, and where they changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.options.choices import HistoryChoices, PathLike
from dxt_replay.replay.options.option import filled, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.regress.history import History


@takes(HistoryChoices)
def history(*records: PathLike, **choices: Unpack[HistoryChoices]) -> History:
    """The history of records that `regress` wrote: files, or folders whose .json files are read.

        dxt_replay.history("records").as_json()["series"][0]["headline"]

    Raises: UsageError for a file that is not a record, is damaged or of a newer release, and for folders without one.
    """
    from dxt_replay.replay.regress.history import make_history
    from dxt_replay.replay.regress.statistics import Rule

    rule = Rule(**filled(HistoryChoices, choices))
    return make_history([Path(place) for place in records], rule)
