"""The families of options of commands that make a capture, or a description of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from dxt_replay.replay.options.choices import READINGS, TRACERS, PathLike, PathMaps, Reading
from dxt_replay.replay.options.option import Option, maps_option


class FitChoices(TypedDict, total=False):
    """Options of `fit`."""

    batch: Annotated[
        int | None,
        Option(
            "Batch size of a rank, if you know it. The bytes of a step show only batch size times record length.",
            least=1,
            metavar="N",
        ),
    ]


class MergeEachChoices(TypedDict, total=False):
    """Options of merging, for one job or many."""

    exclude: Annotated[Sequence[str], Option("Leave out files whose path matches; repeatable.", (), metavar="GLOB")]
    reconstruct: Annotated[
        bool,
        Option(
            "Do not reconstruct operations from counters: untraced reads and writes, opens, closes, stats, "
            "syncs, stdio, renames.",
            True,
            parameter="no_reconstruct",
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
    inspect: Annotated[bool, Option("Open the recorded HDF5 files and store the places of their chunks.", False)]
    maps: Annotated[PathMaps | None, maps_option("With --inspect, look for recorded paths below PREFIX in DIR")]


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
    readers: Annotated[int | None, Option("Readers of each rank; 0: the training thread itself reads.", metavar="N")]
    prefetch: Annotated[int | None, Option("Batches that readers may be ahead of the training loop.", metavar="N")]
    compute_speed: Annotated[float, Option("Compute X times as fast, such as 4.", 1.0, metavar="X", shown=False)]
    ranks: Annotated[int | None, Option("Share the work among N ranks.", metavar="N")]
    weak: Annotated[bool, Option("With --ranks: give each rank as much work as before.", False)]


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
            "The tracer. strace and dftracer need no Darshan, but record less; marks see steps and no I/O.  "
            "[default: darshan, marks where it is missing]",
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
