"""What a calibration says of an object store, and what it could not see. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.traces.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """GETs on so many connections at once.

    requests_per_s: of the smallest ranges. bytes_per_s: of the largest ranges. None where not measured.
    """

    connections: int
    requests_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFigures:
    """Figures of an object store; None where not measured.

    first_byte_us: from the call of a GET of the smallest range to the head of its answer, median, us.
    first_byte_large_us: the same of the largest range.
    connection_bytes_per_s: bandwidth of one connection, after the first byte of the largest range.
    by_connections: request rate and bandwidth by number of connections.
    own_objects: whether objects of its own were read, otherwise those of a staged twin.
    """

    first_byte_us: float | None
    first_byte_large_us: float | None
    connection_bytes_per_s: float | None
    by_connections: tuple[Connections, ...]
    own_objects: bool


def object_figures(measured: Sequence[Measured], *, own_objects: bool) -> ObjectFigures:
    """The figures of these measurements, which have at least a GET."""
    whole = {(each.size, each.in_flight): each for each in measured if (each.call, each.state) == ("GET", "")}
    first = {each.size: each for each in measured if (each.call, each.state) == ("GET", "first byte")}
    small, large = min(size for size, _ in whole), max(size for size, _ in whole)
    alone, begun = whole.get((large, 1)), first.get(large)
    transfer_ns = alone.p50_ns - begun.p50_ns if alone is not None and begun is not None else 0.0
    return ObjectFigures(
        first_byte_us=first[small].p50_ns / 1e3 if small in first else None,
        first_byte_large_us=begun.p50_ns / 1e3 if begun is not None else None,
        connection_bytes_per_s=large * 1e9 / transfer_ns if transfer_ns > 0 else None,
        by_connections=tuple(
            Connections(
                connections=count,
                requests_per_s=_rate(whole.get((small, count))),
                bytes_per_s=None if (large, count) not in whole else whole[large, count].bytes_per_s,
            )
            for count in sorted({count for _, count in whole})
        ),
        own_objects=own_objects,
    )


def _rate(one: Measured | None) -> float | None:
    return None if one is None or not one.time_ns.value else one.in_flight * 1e9 / one.time_ns.value


def object_caveats(
    figures: ObjectFigures, refused: Mapping[str, str], disturbed: Sequence[Measured], *, objects: int, data_bytes: int
) -> tuple[str, ...]:
    """The limits of a model of an object store for its reader, the most important first.

    refused: request -> why it was not measured.
    """
    found = [f"Not measured: {request} ({why})." for request, why in refused.items()]
    if refused:
        found.append(
            "In the model a request that was not measured takes no time, and on more connections than were measured "
            "as much more as on fewer."
        )
    if disturbed:
        names = ", ".join(dict.fromkeys(f"{each.call} of {format_bytes(each.size)}" for each in disturbed))
        found.append(f"Other work disturbed each trial of {names}: the model has the median of single requests there.")
    which = "had just been written" if figures.own_objects else "are those of the staged twin"
    return (
        *found,
        f"The caches of the store cannot be dropped. The {objects} objects that were read ({format_bytes(data_bytes)}) "
        f"{which}, so caches may have served them.",
        "Only this machine was in use: what a store does under the load of other clients, and over hours, was not "
        "measured. Some stores raise or lower their limits meanwhile.",
        "The times include the client on this machine. Where its processors were busy, the store may serve more.",
        "How long a connection takes to open (TCP, TLS) was not measured: connections stayed open.",
    )
