"""The families of options of commands that look at captures: parts, tables, comparisons, other formats, checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from dxt_replay.replay.options.choices import GROUPINGS, PathLike, PathMaps, RunPair
from dxt_replay.replay.options.option import Option, maps_option


class PartChoices(TypedDict, total=False):
    """The part of a capture that a command works on."""

    ranks: Annotated[str | None, Option("Only these recorded ranks, such as 0-15,20.", metavar="LIST")]
    begin: Annotated[
        str | None,
        Option(
            "Only operations that start at this time of the capture or later: 10, 10s, 500ms.",
            flags=("--from",),
            metavar="TIME",
        ),
    ]
    until: Annotated[str | None, Option("Only operations that start before this time of the capture.", metavar="TIME")]
    steps: Annotated[str | None, Option("Only training steps A to B, on each rank at its own times.", metavar="A-B")]


class FilterChoices(PartChoices, total=False):
    """The part of a capture by files, operations and interfaces too: keyword arguments of `part`."""

    paths: Annotated[
        Sequence[str],
        Option("Only files whose path matches one of these; repeatable.", (), parameter="path", metavar="GLOB"),
    ]
    exclude: Annotated[
        Sequence[str],
        Option("Leave out files whose path matches (* matches / too); repeatable.", (), metavar="GLOB"),
    ]
    operations: Annotated[
        Sequence[str],
        Option("Only read, write, open, close ...; repeatable.", (), parameter="op", metavar="NAME"),
    ]
    interfaces: Annotated[
        Sequence[str],
        Option("Only POSIX, STDIO, MPIIO or HDF5; repeatable.", (), parameter="api", metavar="NAME"),
    ]


class TableChoices(TypedDict, total=False):
    """Options of `tables`."""

    by: Annotated[str | None, Option("Add a table of totals per group.", choices=GROUPINGS)]
    maps: Annotated[
        PathMaps | None,
        maps_option("For --show tfrecords and datasets: look for recorded files below PREFIX in DIR"),
    ]
    bin: Annotated[
        str | None,
        Option(
            "Width of a bin of the timeline, such as 1s or 5ms.",
            flags=("--bin",),
            parameter="bin_width",
            metavar="TIME",
        ),
    ]
    bins: Annotated[int | None, Option("About how many bins the timeline has if no width is given.", flags=())]


class ThresholdChoices(TypedDict, total=False):
    """The limits of a comparison: fields of `Thresholds`."""

    similarity: Annotated[
        float, Option("Least cosine of the workload's seven factors.", 0.95, flags=(), least=0, most=1)
    ]
    fail_under: Annotated[
        float | None,
        Option(
            "Fail when the cosine of all ten factors is below S, such as 0.95. Storage decides three of them, so by "
            "default only the other seven count, and their cosine must reach 0.95.",
            least=0,
            most=1,
            metavar="S",
        ),
    ]
    elapsed_error_pct: Annotated[
        float,
        Option(
            "Largest error of the elapsed time of a timed replay that passes, in per cent.",
            1.0,
            parameter="max_elapsed_error",
            least=0,
            metavar="PCT",
        ),
    ]
    drift_ppm: Annotated[
        float,
        Option(
            "Largest drift of the start times of a timed replay that passes, in microseconds per second.",
            20.0,
            parameter="max_drift",
            least=0,
            metavar="PPM",
        ),
    ]
    storage_pct: Annotated[
        float, Option("Smallest change of the I/O time that is called faster or slower.", 5.0, flags=(), least=0)
    ]


class PairChoices(TypedDict, total=False):
    """How two captures are compared: keyword arguments of `compare` and `report`."""

    different_runs: Annotated[
        bool,
        Option("Compare two captures that are not source and replay: figures side by side, without a verdict.", False),
    ]
    floor: Annotated[
        Sequence[RunPair],
        Option(
            "Two runs of the same application, or two replays. Their difference is noise, and no limit is stricter "
            "than it. Repeatable; the worst pair counts.",
            (),
            metavar="A B",
        ),
    ]


class ExportChoices(TypedDict, total=False):
    """Options of `export`."""

    target: Annotated[PathLike | None, Option("For fio: directory that holds the staged twin.", metavar="DIR")]


class VerifyChoices(TypedDict, total=False):
    """Options of `verify`."""

    sources: Annotated[
        Sequence[PathLike],
        Option(
            "A log, profile or capture that a capture was made from; those beside the capture are found. Repeatable.",
            (),
            flags=("--source",),
            metavar="FILE",
        ),
    ]
    sizes_only: Annotated[bool, Option("Look at kinds and sizes of a twin's files, not at their bytes: fast.", False)]
