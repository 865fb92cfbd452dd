"""Shows results of experiments over time, and where they changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.options.choices import PathLike

if TYPE_CHECKING:
    from dxt_replay.replay.history.history import History


def history(*records: PathLike, threshold_pct: float = 5.0, alpha: float = 0.05) -> History:
    """The history of records that `regress` wrote: files, or folders whose .json files are read.

    `threshold_pct`: the smallest change that matters. `alpha`: probability of a false change point if all records lie
    within the threshold of each other.

        dxt_replay.history("records").as_json()["series"][0]["headline"]

    Raises: UsageError for a file that is not a record, is damaged or of a newer release, and for folders without one.
    """
    from dxt_replay.replay.history.history import make_history
    from dxt_replay.replay.history.record_files import find_records
    from dxt_replay.replay.regression.interval_verdict import Rule

    rule = Rule(threshold_pct=threshold_pct, alpha=alpha)
    return make_history(find_records([Path(place) for place in records]), rule)
