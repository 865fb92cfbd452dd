"""The HTML elements of the page's charts, with names, notes and controls. Scripts draw into them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from dxt_replay.replay.show.page import figures
from dxt_replay.replay.show.page.data import drawn_lanes, drawn_ranks
from dxt_replay.replay.show.page.html_tables import html_text
from dxt_replay.traces.units import format_count, format_duration
from dxt_replay.traces.unseen import nothing_recorded

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.overview import Overview


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One of the captures. `key` (source or replay) is part of the ids, `title` is shown where there are two."""

    key: str
    title: str
    overview: Overview
    origin_ns: int

    @property
    def steps(self) -> bool:
        """Whether the steps of the capture are known."""
        return bool(self.overview.analysis.overlap.steps.num_rows)

    @property
    def io(self) -> bool:
        """Whether I/O was recorded: without it a figure of it would show 0."""
        return not nothing_recorded(self.overview.analysis.summary.coverage.unseen)


LABELS = {
    "timeline": "Timeline of operations by rank and thread",
    "offsets": "Offsets of a file's reads and writes over time",
    "course": "Bandwidth, operations in flight, and shares of time over time",
    "sizes": "Number of requests and bytes moved by request size",
    "heat": "Heat map of ranks over time",
    "steps": "Where the time of each training step went",
    "storage": "Training time by the speed of storage",
    "lag": "Lag of the replayed operations over time",
}
"""Name of each chart for screen readers."""

NOTES = {
    "course": "Bytes are spread over the bins that an operation covers, so that the areas are the totals. "
    "Only traced reads and writes; one layer for each file.",
    "sizes": "Bins of powers of two; each bar is all requests of its interface, direction and origin. "
    "Layers overlap: bars of MPI-IO or HDF5 are carried out as requests of POSIX.",
    "heat": "Blank where there is nothing. Colours of rates end at the 99th percentile; hover for exact values.",
    "offsets": "Each line is a read or write, from its first byte when it begins to its last byte when it ends. "
    "Ascending lines are sequential access, scattered ones random access.",
    "storage": "By the causal model of the training: dependencies stay, and compute and decoding keep their recorded "
    "times. At speed 2 each operation takes half as long.",
    "lag": "Lag is begin - due: how late the replayer issued an operation, whatever the storage then took.",
    "steps": "The parts add up to the mean duration over the ranks; a step is above the median of its own rank. "
    f"Above {figures.MOST_STEP_BARS} steps, a bar is the mean of several.",
}

_CONTROLS = {
    "course": ("false", "logarithmic"),
    "sizes": ("true", "logarithmic"),
}
"""State (pressed) and text of the button that changes a value axis between linear and logarithmic."""


def chart(name: str, side: Side, shown: Mapping[str, figures.Figure]) -> str:
    """The HTML element of one figure with its controls; a sentence if the capture has nothing to draw."""
    place = f"{name}-{side.key}"
    if place not in shown:
        return '<p class="note">Nothing to show.</p>'
    figure = shown[place]
    controls = ""
    if name in _CONTROLS:
        pressed, text = _CONTROLS[name]
        controls += f'<button type="button" data-log aria-pressed="{pressed}">{text}</button>'
    if name == "heat" and len(figure["data"]) > 1:
        options = "".join(
            f'<option value="{number}">{escape(trace["name"])}</option>' for number, trace in enumerate(figure["data"])
        )
        controls += f"<label>show <select data-quantity>{options}</select></label>"
    return framed(
        place, LABELS[name], side.title, controls, figure["layout"].get("meta", ""), figure["layout"]["height"]
    )


def framed(place: str, label: str, title: str, controls: str, note: str, height: int = 0) -> str:
    """The HTML element of a chart with its controls and its note, which stay on one sheet of paper."""
    bar = f'<div class="controls" data-for="{place}">{controls}</div>' if controls else ""
    name = escape(f"{label}, {title.lower()}" if title else label)
    below = f'<p class="note">{html_text(note)}</p>' if note else ""
    style = f' style="min-height:{height}px"' if height else ""
    drawn = f'<div class="chart" id="{place}" role="img" aria-label="{name}"{style}></div>'
    return f'<div class="framed">{bar}{drawn}{below}</div>'


def timelines(sides: Sequence[Side]) -> str:
    """The controls of all charts, and the timeline of each side."""
    legend = "".join(
        f'<label class="kind"><input type="checkbox" checked data-kind="{escape(kind)}">'
        f'<span class="swatch" style="background:{figures.KIND_COLOURS[kind]}"></span>{escape(kind)}</label>'
        for kind in _kinds(sides)
    )
    charts = "".join(
        (f"<h3>{escape(side.title)}: {html_text(side.overview.name)}</h3>" if side.title else "")
        + f'<p class="status" id="timeline-{side.key}-status" aria-live="polite"></p>'
        + framed(f"timeline-{side.key}", LABELS["timeline"], side.title, "", sampling_rule(side.overview))
        for side in sides
    )
    intro = (
        '<details><summary>How to read and zoom it</summary><p class="note">Drag over a stretch to zoom all charts of '
        "time, double-click to go back. r0 is rank 0: its steps, its training loop, its work on input, and the I/O of "
        "its lanes (threads), by their roles where these are known: main thread, worker processes, other threads, "
        "readers. Zoomed out, a bin is filled as high as the share of its time that was spent so; zoomed in, each bar "
        "is an operation or several neighbours joined to one.</p></details>"
    )
    return f'<div class="legend" id="timeline-legend">{legend}</div>{charts}{_controls(sides)}{intro}'


def _controls(sides: Sequence[Side]) -> str:
    jumps = "".join(
        f'<button type="button" data-window="{number}" data-side="{side.key}">'
        f"{escape(f'{window.name}, {side.title.lower()}' if side.title else window.name)}</button>"
        for side in sides
        for number, window in enumerate(side.overview.lanes.windows)
    )
    return (
        '<div class="controls" id="view-controls" role="group" aria-label="Zoom and filter of all charts and tables">'
        '<button type="button" data-zoom="home">reset zoom</button>'
        '<button type="button" data-zoom="in" aria-label="zoom in">+</button>'
        '<button type="button" data-zoom="out" aria-label="zoom out">−</button>'
        '<button type="button" data-zoom="left" aria-label="earlier">◀</button>'
        '<button type="button" data-zoom="right" aria-label="later">▶</button>'
        f"{jumps}"
        '<label>ranks <input id="rank-filter" type="text" size="8" placeholder="such as 0-3,8"></label>'
        '<label>files <input id="file-filter" type="search" size="14" placeholder="part of a path"></label></div>'
        '<p class="note" id="quiet-note" hidden></p><p class="note" id="filter-note" role="status" hidden></p>'
    )


def offsets(sides: Sequence[Side]) -> str:
    """The chart of offsets over time; empty if no side has any."""
    if not any(side.overview.offsets for side in sides):
        return ""
    charts = "".join(
        (f"<h3>{escape(side.title)}: {html_text(side.overview.name)}</h3>" if side.title else "")
        + framed(
            f"offsets-{side.key}",
            LABELS["offsets"],
            side.title,
            f'<label>file <select data-offsets="{side.key}"></select></label>',
            "",
            340,
        )
        + f'<p class="status" id="offsets-{side.key}-status" aria-live="polite"></p>'
        for side in sides
    )
    return f'<p class="note">{NOTES["offsets"]}</p>{charts}'


def _kinds(sides: Sequence[Side]) -> list[str]:
    present = {kind for side in sides for _, kind in side.overview.loops.tracks}
    present |= {kind for side in sides for _, _, kind in drawn_lanes(side.overview).tracks}
    return [kind for kind in figures.KIND_COLOURS if kind in present]


def sampling_rule(overview: Overview) -> str:
    """How the bars of a timeline came from the operations, in sentences."""
    lanes, drawn, ranks = drawn_lanes(overview), drawn_ranks(overview), overview.analysis.overlap.ranks
    all_ = "All" if len(drawn) == len(ranks) else "All of the shown ranks'"
    words = []
    if nothing_recorded(overview.analysis.summary.coverage.unseen):
        words.append("No I/O was recorded.")
    elif lanes.resolution_ns == 0:
        words.append(
            f"{all_} {format_count(lanes.operations)} operations are in this timeline, each as a bar of its own."
        )
    else:
        limit = format_duration(lanes.resolution_ns)
        words.append(
            f"{all_} {format_count(lanes.operations)} operations are in this timeline, in "
            f"{format_count(lanes.bars)} bars: neighbours on a lane that are shorter than {limit}, with a gap shorter "
            f"than {limit}, are joined to one."
        )
        if lanes.windows:
            names = ", ".join(
                f"{window.name} ({window.from_ns / 1e9:.6f} to {window.until_ns / 1e9:.6f} s of the capture)"
                for window in lanes.windows
            )
            words.append(f"Every operation is a bar of its own in: {names}.")
        words.append("dxt-replay report --from ... --until ... shows any other stretch in full.")
    if overview.loops.resolution_ns:
        limit = format_duration(overview.loops.resolution_ns)
        words.append(f"Compute and waits that are shorter than {limit} and no further apart share a bar.")
    if len(drawn) < len(overview.shown_ranks):
        words.append(f"There is room for the lanes of {len(drawn)} of {format_count(len(ranks))} ranks.")
    elif len(drawn) < len(ranks):
        words.append(
            f"Shown are {len(drawn)} of {format_count(len(ranks))} ranks: half of them those with the most I/O time, "
            "half evenly spread."
        )
    if len(drawn) < len(ranks):
        words.append("--ranks shows others.")
    return " ".join(words)
