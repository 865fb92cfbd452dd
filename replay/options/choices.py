"""The families of options: keywords of the public functions, and options of the commands of the same names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from dxt_replay.replay.options.option import DURATION, Option, kept_option, maps_option
from dxt_replay.traces.paces import API_CHOICES, COMPUTE_CHOICES, PACE_CHOICES, Pace

PathLike = str | os.PathLike[str]

if TYPE_CHECKING:
    from dxt_replay.replay.interface.captures import CaptureOrPath
else:
    CaptureOrPath = PathLike  # its home imports what reads captures, which --help need not wait for

RunPair = tuple[CaptureOrPath, CaptureOrPath]
"""Two runs of one job."""

PathMaps = Mapping[str, PathLike] | Sequence[str]
"""Places of real data by recorded prefix: `{"/data/train": "/mnt/copy"}`, or `["/data/train=/mnt/copy"]`."""

Reading = Literal["documented", "head", "v2.0", "v3.0"]
READINGS: tuple[Reading, ...] = ("documented", "head", "v2.0", "v3.0")
"""Those of `workloads.description`."""

FORMATS = ("darshan", "chrome", "csv", "fio")
"""Formats that `export` writes."""

GROUPINGS = ("rank", "file", "format", "step", "size")
"""Those of `profiler_merge.analysis.tables`."""

TRACERS = ("darshan", "strace", "dftracer", "requests", "marks")
"""Those of `profiler_merge.recorder.tracers`."""

_WHEN = [f"{pace.meaning} ({pace.value})" for pace in Pace]
PACE_HELP = f"Issue an operation {', '.join(_WHEN[:-1])}, or {_WHEN[-1]}."


SPEEDS = ("speed", "compute_speed", "io_speed")
"""Keywords of the speeds, which are the fields of `replay.plan.pacing.Pacing`."""


class RunChoices(TypedDict, total=False):
    """How a capture is replayed: keyword arguments of `run`, `run_repeatedly` and `regress`.

    When `timeout_s` ends a run, ReplayError names the call that hangs. If the calling thread itself is stuck in it, the
    process ends with status 2.
    """

    pace: Annotated[str, Option(PACE_HELP, Pace.TIMED.value, choices=PACE_CHOICES)]
    speed: Annotated[float, Option("Replay faster: 2 halves every gap.", 1.0)]
    compute_speed: Annotated[
        float | None, Option("Shorten compute alone: 2 halves it (--pace steps, think).  [default: --speed]")
    ]
    io_speed: Annotated[
        float | None, Option("Shorten the gaps between operations alone (--pace steps, think).  [default: --speed]")
    ]
    compute: Annotated[
        str,
        Option(
            "Replay computation as sleep or as a busy processor (spin).",
            "sleep",
            choices=COMPUTE_CHOICES,
        ),
    ]
    api: Annotated[
        str,
        Option(
            "Issue operations through this interface. auto: the one that recorded each operation. null: no I/O.",
            "auto",
            choices=API_CHOICES,
        ),
    ]
    direct: Annotated[bool, Option("Issue POSIX operations past the page cache (O_DIRECT).", False)]
    timeout_s: Annotated[
        float | None,
        Option(
            "Stop a run that takes longer, and print the calls that hang; such as 90, 10m or 2h.",
            flags=("--timeout",),
            metavar=DURATION,
        ),
    ]


_Cold = Annotated[
    bool,
    Option(
        "Drop the twin's pages before each run (cold) or keep them (warm); each run measures the page cache first.",
        True,
        flags=("--cold/--warm",),
    ),
]


class ReplayChoices(RunChoices, total=False):
    """Options of `run` and `run_repeatedly`."""

    cold: _Cold
    maps: Annotated[PathMaps | None, maps_option("As for stage")]


class StageChoices(TypedDict, total=False):
    """Options of `stage`."""

    dry_run: Annotated[bool, Option("Print what would be written, and write nothing.", False)]
    sparse: Annotated[bool, Option("Write holes instead of data; reads of holes do not reach the device.", False)]
    maps: Annotated[
        PathMaps | None,
        maps_option("Read recorded paths below PREFIX from the real data in DIR, which is never written"),
    ]
    workers: Annotated[
        int | None,
        Option("Files written at the same time.  [default: twice the processors, at most 16]", least=1, most=64),
    ]
    timeout_s: Annotated[
        float | None,
        Option(
            "Stop staging that takes longer, and print the file that it hangs in; such as 90, 10m or 2h.",
            flags=("--timeout",),
            metavar=DURATION,
        ),
    ]


class CalibrateChoices(TypedDict, total=False):
    """Options of `calibrate`."""

    minutes: Annotated[float, Option("Time to measure for; more narrows the intervals.", 3.0)]


class CapacityChoices(TypedDict, total=False):
    """Options of `capacity`."""

    utilisation_pct: Annotated[
        float,
        Option(
            "Accelerator utilisation that every run must reach.",
            90.0,
            parameter="utilisation",
            least=0,
            most=100,
            inclusive=False,
            metavar="PCT",
        ),
    ]
    most: Annotated[int, Option("Most ranks to try.", 32, least=1, most=1 << 16, metavar="N")]
    storage: Annotated[
        str | Path | None,
        Option(
            "Begin at the ranks that `simulate` predicts for this model, such as nvme.",
            metavar="MODEL",
        ),
    ]
    overrides: Annotated[Sequence[str], Option("KEY=VALUE: replaces a key of the workload.", (), flags=())]
    output: Annotated[PathLike | None, kept_option("the captures")]


class SimulateChoices(TypedDict, total=False):
    """What `simulate` predicts, and what it assumes besides the storage. The pace is `steps`."""

    ranks: Annotated[
        Sequence[int],
        Option(
            "Predict for these numbers of ranks too, such as 128,256,...,8192. Each further copy of the recorded ranks "
            "reads its own files.",
            (),
            metavar="LIST",
        ),
    ]
    strong: Annotated[
        bool, Option("With --ranks: share the recorded work among the ranks, like `transform --ranks`.", False)
    ]
    runs: Annotated[
        int, Option("Simulate N runs with different seeds if the model has jitter.", 5, least=1, metavar="N")
    ]
    speed: Annotated[float, Option("Shorten every gap: 2 halves it.", 1.0)]
    compute_speed: Annotated[float | None, Option("Shorten compute alone.  [default: --speed]")]
    io_speed: Annotated[float | None, Option("Shorten the gaps between operations alone.  [default: --speed]")]
    check: Annotated[
        str | Path | None,
        Option(
            "Replay some seconds of the capture in this directory, or s3:// URL, of the real storage. Where the times "
            "differ, the interval becomes wider; if they contradict the model, fail. Remove the written files "
            "afterwards.",
            metavar="TARGET",
        ),
    ]
    check_seconds: Annotated[float, Option("Predicted duration of the replay of --check.", 5.0, metavar="SECONDS")]


_ThresholdPct = Annotated[float, Option("The smallest change that matters.", 5.0, parameter="threshold", metavar="PCT")]


class RegressChoices(RunChoices, total=False):
    """Options of `regress`. The default of `pace` is steps if the capture has training steps, else think."""

    against: Annotated[
        PathLike | None,
        Option("Replay on TARGET alone, and compare with the candidate's runs in this record.", metavar="RECORD"),
    ]
    record: Annotated[
        PathLike | None,
        Option(
            "Write runs, environment and verdict to FILE, such as monday.json, for --against and `history`.",
            metavar="FILE",
            place="file",
        ),
    ]
    repeats: Annotated[
        int, Option("Pairs of runs, a baseline and a candidate each.", 10, least=1, most=1000, metavar="N")
    ]
    threshold_pct: _ThresholdPct
    cold: _Cold
    baseline_maps: Annotated[PathMaps | None, maps_option("Real data on the baseline", "--baseline-map")]
    candidate_maps: Annotated[PathMaps | None, maps_option("Real data on the candidate", "--candidate-map")]
    output: Annotated[PathLike | None, kept_option("the replays")]


class HistoryChoices(TypedDict, total=False):
    """Options of `history`."""

    threshold_pct: _ThresholdPct
