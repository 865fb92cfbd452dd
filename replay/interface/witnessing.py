"""Compares a replay with a Darshan log of the replay itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.interface.captures import CaptureOrPath, is_log, opened
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.looking import WitnessChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.profiler_merge.darshan.log import DarshanLog
    from dxt_replay.replay.witness.counted_comparison import CountedComparison


@takes(WitnessChoices)
def compare_log(source: CaptureOrPath, log: PathLike, **choices: Unpack[WitnessChoices]) -> CountedComparison:
    """Compare a Darshan log of a replay (or a folder of the logs of its processes) with the operations of the capture.

    Preload Darshan in the replay as in any program. A log without DXT is enough: counters are compared.

        dxt_replay.compare_log("run.capture", "replay.darshan").headline

    Raises: UsageError for a log of another program or of the replay of another capture; LogError; CaptureError.
    """
    from dxt_replay.replay.witness.counted_comparison import compare_counted

    chosen = filled(WitnessChoices, choices)
    logs = _replay_logs(Path(log))
    if logs is None:
        raise UsageError(f"{log} is not a log of a replay: none of its files lies in a twin that was staged")
    with opened(source) as capture:
        return compare_counted(capture, logs, chosen["maps"])


def is_replay_log(path: PathLike) -> bool:
    """Whether a path is a Darshan log of a replay, or a folder of such logs.

        dxt_replay.is_replay_log("replay.darshan")

    Raises: LogError for a damaged log.
    """
    return is_log(Path(path)) and Path(path).exists() and _replay_logs(Path(path)) is not None


def _replay_logs(path: Path) -> list[DarshanLog] | None:
    from dxt_replay.profiler_merge.darshan.job_logs import find_logs
    from dxt_replay.replay.witness.replay_logs import open_replay_logs

    return open_replay_logs(find_logs(path))
