"""The families of options: keywords of the public functions, and options of the commands of the same names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypedDict

from dxt_replay.replay.options.option import DURATION, Option
from dxt_replay.traces.paces import API_CHOICES, COMPUTE_CHOICES, PACE_CHOICES, Pace

PathLike = str | os.PathLike[str]
PathMaps = Mapping[str, PathLike] | Sequence[str]
"""Places of real data by recorded prefix: `{"/data/train": "/mnt/copy"}`, or `["/data/train=/mnt/copy"]`."""

Reading = Literal["documented", "head", "v2.0", "v3.0"]
READINGS: tuple[Reading, ...] = ("documented", "head", "v2.0", "v3.0")
"""Those of `workloads.description`."""

FORMATS = ("darshan", "chrome", "csv", "fio")
"""Formats that `export` writes."""

TRACERS = ("darshan", "strace", "dftracer")
"""Those of `profiler_merge.recorder.tracer`."""

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
        float | None,
        Option("Shorten the gaps between operations alone (--pace steps, think).  [default: --speed]"),
    ]
    compute: Annotated[
        str,
        Option(
            "Replay computation as sleep, as a busy processor (spin), or not at all (skip).",
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
    reconstruct: Annotated[
        bool, Option("Replay the operations that were reconstructed from counters, or leave them out.", True)
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
    compute: Annotated[str, Option("As of `RunChoices`.", "sleep", flags=(), choices=COMPUTE_CHOICES)]
    reconstruct: Annotated[
        bool, Option("Simulate the operations that were reconstructed from counters, or leave them out.", True)
    ]
    check: Annotated[
        PathLike | None,
        Option(
            "Replay some seconds of the capture in this directory of the real storage. Where the times differ, the "
            "interval becomes wider; if they contradict the model, fail. Remove the written files afterwards.",
            metavar="TARGET",
        ),
    ]
    check_seconds: Annotated[float, Option("Predicted duration of the replay of --check.", 5.0, metavar="SECONDS")]


class MergeEachChoices(TypedDict, total=False):
    """Options of merging, for one job or many."""

    exclude: Annotated[Sequence[str], Option("Leave out files whose path matches; repeatable.", (), metavar="GLOB")]
    skip_damaged: Annotated[bool, Option("Read the intact parts of a damaged log.", False)]
    reconstruct: Annotated[
        bool,
        Option(
            "Do not reconstruct operations from counters: untraced reads and writes, opens, closes, seeks, stats, "
            "syncs, stdio, renames.",
            True,
            parameter="no_reconstruct",
        ),
    ]
    reconstruct_limit: Annotated[
        int,
        Option(
            "Reconstruct at most this many untraced reads and writes of one process.",
            10_000_000,
            least=1,
            metavar="OPERATIONS",
        ),
    ]


class MergeChoices(MergeEachChoices, total=False):
    """Options of merging the recordings of one job into a capture."""

    profiles: Annotated[
        PathLike | Sequence[PathLike],
        Option(
            "Log directory of TensorFlow's, JAX's or PyTorch's profiler, or one of its files; repeatable.",
            (),
            flags=("--profile",),
            metavar="DIR",
        ),
    ]
    align: Annotated[
        str,
        Option(
            "How to align the log's clock with the profile's; SECONDS are added to the log's times.",
            "auto",
            metavar="auto|anchors|nesting|wall|SECONDS",
        ),
    ]
    include: Annotated[
        Sequence[str],
        Option(
            "Keep matching system files and programs of a trace of strace or DFTracer, which are left out otherwise; "
            "repeatable.",
            (),
            metavar="GLOB",
        ),
    ]
    inspect: Annotated[bool, Option("Open the recorded HDF5 files and store the places of their chunks.", False)]
    maps: Annotated[
        PathMaps | None,
        Option(
            "With --inspect, look for recorded paths below PREFIX in DIR; repeatable.",
            flags=("--map",),
            metavar="PREFIX=DIR",
        ),
    ]
    keep_profiler_files: Annotated[
        bool,
        Option("Keep the operations on files that PyTorch's profiler, not the job, wrote.", False),
    ]
    extend: Annotated[
        bool,
        Option(
            "Keep only the profiled steps; do not infer the steps outside the profile from the job's reads.",
            True,
            parameter="no_extend",
        ),
    ]


class TransformChoices(TypedDict, total=False):
    """The changes of `transform`, applied in this order; None and 1.0 change nothing."""

    chunk: Annotated[int | str | None, Option("Store HDF5 data in chunks of this size, such as 1MiB.", metavar="SIZE")]
    compression: Annotated[
        str | None,
        Option(
            "Compress the data: gzip:0.6 stores 60 % of the bytes; gzip:0.6:250MB/s also sets the decoder's speed.",
            metavar="NAME:RATIO",
        ),
    ]
    transfer_size: Annotated[
        int | str | None, Option("Read streams in requests of this size, such as 1MiB.", metavar="SIZE")
    ]
    batch: Annotated[int | None, Option("Join N batches into one, so that N steps become one.", metavar="N")]
    readers: Annotated[int | None, Option("Readers of each rank; 0: the training thread itself reads.", metavar="N")]
    prefetch: Annotated[int | None, Option("Batches that readers may be ahead of the training loop.", metavar="N")]
    preprocess_speed: Annotated[
        float, Option("Preprocess X times as fast, such as 2 or 0.5.", 1.0, metavar="X", shown=False)
    ]
    compute_speed: Annotated[float, Option("Compute X times as fast, such as 4.", 1.0, metavar="X", shown=False)]
    ranks: Annotated[int | None, Option("Share the work among N ranks.", metavar="N")]
    weak: Annotated[bool, Option("With --ranks: give each rank as much work as before.", False)]


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
    warmup: Annotated[int, Option("First runs of each side that do not count.", 1, least=0, metavar="N")]
    threshold_pct: Annotated[
        float,
        Option("The smallest change that matters.", 5.0, flags=("--threshold",), parameter="threshold", metavar="PCT"),
    ]
    alpha: Annotated[float, Option("Probability of a false alarm.", 0.05)]
    seed: Annotated[
        int | None, Option("Seed of the random order within pairs.  [default: a new one, printed]", least=0)
    ]
    metric: Annotated[
        str | None,
        Option(
            "Metric that decides.  [default: elapsed_s; total_s if the data are loaded before the first step; "
            "latency_mean_us under --pace timed]",
            metavar="NAME",
        ),
    ]
    stage: Annotated[bool, Option("Stage the twin if it is absent.", True)]
    cold: Annotated[
        bool,
        Option(
            "Drop the twin's pages before each run (cold) or keep them (warm); each run measures the page cache first.",
            True,
            flags=("--cold/--warm",),
        ),
    ]
    baseline_maps: Annotated[
        PathMaps | None,
        Option(
            "Real data on the baseline; repeatable.",
            flags=("--baseline-map",),
            parameter="baseline_map",
            metavar="PREFIX=DIR",
        ),
    ]
    candidate_maps: Annotated[
        PathMaps | None,
        Option(
            "Real data on the candidate; repeatable.",
            flags=("--candidate-map",),
            parameter="candidate_map",
            metavar="PREFIX=DIR",
        ),
    ]
    output: Annotated[
        PathLike | None,
        Option(
            "Keep the replays in DIR.  [default: deleted]",
            flags=("-o", "--output"),
            metavar="DIR",
            place="directory",
        ),
    ]


class GenerateChoices(TypedDict, total=False):
    """Options of `generate`."""

    reading: Annotated[
        Reading | None,
        Option(
            "Follow DLIO's documentation (documented) or its code: main of June 2026 (head), MLPerf Storage v2.0 or "
            "v3.0.  [default: the reading that WORKLOAD names, else documented]",
            choices=READINGS,
        ),
    ]
    device: Annotated[
        str | None,
        Option(
            "Storage that the times assume, or null.  [default: latency=100us,bandwidth=1GB/s]",
            metavar="DEVICE",
        ),
    ]
    seed: Annotated[int, Option("Seed of the random times that DLIO draws without a seed.", 0, least=0)]


class RecordChoices(TypedDict, total=False):
    """Options of `record`."""

    logs: Annotated[
        PathLike | None,
        Option(
            "New folder for the logs and profiles of this run.  [default: OUT.recording beside the capture]",
            metavar="DIR",
        ),
    ]
    tracer: Annotated[
        str | None,
        Option(
            "The tracer. strace and dftracer need no Darshan, but record less.  [default: darshan]",
            flags=("--with",),
            choices=TRACERS,
        ),
    ]
    library: Annotated[
        PathLike | None,
        Option("Darshan's runtime library if it is not found, such as /path/to/libdarshan.so.", metavar="FILE"),
    ]
    profiles: Annotated[
        PathLike | Sequence[PathLike],
        Option(
            "A folder into which the job writes profiles without `recording()`; repeatable.",
            (),
            flags=("--profile",),
            metavar="DIR",
        ),
    ]
    memory_mib: Annotated[
        int | None,
        Option(
            "Memory for Darshan's trace in each process, MiB: 64 hold 1.6 million operations or 25,000 files.  "
            "[default: 1/64 of the free memory, 32 to 256]",
            flags=("--memory",),
            parameter="memory",
            least=1,
            most=1900,
            metavar="MIB",
        ),
    ]
    include: Annotated[
        Sequence[PathLike],
        Option(
            "Trace files below DIR that Darshan leaves out, as it does below /opt, /usr and /var; repeatable.",
            (),
            metavar="DIR",
        ),
    ]
