"""Distance between a capture and the one generated from its fitted description."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dxt_replay.replay.fidelity.compare import Comparison, compare
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import SPAN_KINDS, WRITE, codes
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import Relation
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_signed
from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.observation import SAVING, Observation
from dxt_replay.workloads.fit.saves import Saves

MOST_PATTERNS = 200
"""Folders up to which the expressed part of a capture is compared separately."""

MOST_BYTES_PER_S = 10**12
"""Bandwidth of a device for which larger reads take no longer."""

_STEP = SPAN_KINDS.index("step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the comparison. `capture`, `generated`: the values; `text`: for people."""

    name: str
    capture: float | None
    generated: float | None
    text: tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """A capture and the one generated from its description.

    measures: of the whole capture. request_size_ks: Kolmogorov-Smirnov distance of the transfer sizes, 0 to 1.
    similarity: cosine of the paper's factors without the three that depend on storage, as in `compare`.
    similarity_all: of all ten.
    similarity_expressed: as `similarity`, but only for the files that the description holds; None if it holds none.
    """

    measures: tuple[Measure, ...]
    request_size_ks: float
    similarity: float | None
    similarity_all: float | None
    similarity_expressed: float | None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types; `text` and `summary`: for people."""
        plain = asdict(self)
        plain["measures"] = {
            each.name: {"capture": each.capture, "generated": each.generated, "text": list(each.text)}
            for each in self.measures
        }
        return {**plain, "summary": verdict_lines(self)}


def closeness(
    source: Capture, generated: Capture, seen: Observation, data: DataFiles | None, saves: Saves
) -> Closeness:
    """Compare a capture with the one that its description generates. Makes one pass over both, and one over the
    expressed part.

    Raises: CaptureError when a capture is damaged.
    """
    whole = compare(source, generated, relation=Relation.DIFFERENT)
    part = _expressed(source, seen, data, saves)
    inner = whole if part is source else compare(part, generated, relation=Relation.DIFFERENT) if part else None
    return Closeness(
        measures=tuple(_measures(whole, source, generated)),
        request_size_ks=whole.distribution.transfer_size.ks,
        similarity=whole.similarity.workload_cosine,
        similarity_all=whole.similarity.cosine,
        similarity_expressed=None if inner is None else inner.similarity.workload_cosine,
    )


def _expressed(source: Capture, seen: Observation, data: DataFiles | None, saves: Saves) -> Capture | None:
    """The part of the capture on the files of the description; None if it is empty."""
    ids = [np.concatenate((data.train, data.evaluation))] if data is not None else []
    if saves.any:
        ids.append(saves.results)
        ids.append(seen.uses.file_id[(seen.uses.phase == SAVING) & (seen.uses.op == WRITE)])
    if not ids:
        return None
    paths = [seen.paths[file_id] for file_id in np.unique(np.concatenate(ids)).tolist()]
    patterns = {glob.escape(os.path.dirname(path)) + "/*" + glob.escape(os.path.splitext(path)[1]) for path in paths}
    if len(patterns) > MOST_PATTERNS:
        return source
    try:
        return part_of(source, Part(paths=tuple(sorted(patterns))))
    except UsageError:  # the part is empty
        return None


def _measures(found: Comparison, source: Capture, generated: Capture) -> list[Measure]:
    counts, factors = found.workload, found.similarity.factors
    rows = [
        _measure("operations", counts.operations["source"], counts.operations["replay"], format_count),
        _measure("bytes", counts.bytes["source"], counts.bytes["replay"], format_bytes),
    ]
    for name, label, text in (
        ("files", "files", lambda value: format_count(int(value))),
        ("transfer_size_median", "request size, median", format_bytes),
        ("transfer_size_mean", "request size, mean", format_bytes),
        ("sequential_pct", "sequential", lambda value: f"{value:.1f} %"),
        ("consecutive_pct", "consecutive", lambda value: f"{value:.1f} %"),
    ):
        rows.append(_measure(label, factors[name].source, factors[name].replay, text))
    rows.append(_measure("steps of a rank", _steps(source), _steps(generated), lambda value: f"{value:.6g}"))
    rows.append(_measure("training loop", _loop_s(source), _loop_s(generated), lambda value: f"{value:.3f} s"))
    return rows


def _measure(name: str, one: float, other: float, text: Callable[[Any], str]) -> Measure:
    change = format_signed(100 * (other / one - 1), 3) + " %" if one else "-"
    return Measure(name=name, capture=one, generated=other, text=(text(one), text(other), change))


def _steps(capture: Capture) -> float:
    """Mean number of steps of a rank."""
    return float((codes(capture.spans, "kind") == _STEP).sum()) / max(len(capture.ranks), 1)


def _loop_s(capture: Capture) -> float:
    """Seconds from the begin of the first step to the end of the last one, over all ranks."""
    step = codes(capture.spans, "kind") == _STEP
    if not step.any():
        return 0.0
    start, end = capture.spans["start_ns"].to_numpy()[step], capture.spans["end_ns"].to_numpy()[step]
    return float(end.max() - start.min()) / NS_PER_S


def device_of(seen: Observation) -> str:
    """A device, in the generator's words, whose mean time for a read is that of the capture.

    It has a latency, and a bandwidth if larger reads take longer."""
    lengths = np.concatenate([rank.length for rank in seen.looked]).astype(float)
    lasted = np.concatenate([rank.end_ns - rank.start_ns for rank in seen.looked]).astype(float)
    if not len(lengths):
        return "null"
    slope = float(np.cov(lengths, lasted)[0, 1] / lengths.var()) if lengths.var() > 0 else 0.0
    slope = min(max(slope, 0.0), lasted.mean() / max(lengths.mean(), 1))
    latency = max(lasted.mean() - slope * lengths.mean(), 0.0)
    bandwidth = max(round(NS_PER_S / slope), 1) if slope > 0 else MOST_BYTES_PER_S
    return f"latency={round(latency)}ns,bandwidth={min(bandwidth, MOST_BYTES_PER_S)}B/s"


def table_lines(found: Closeness) -> Sequence[str]:
    """The comparison as aligned lines, for the head of the description."""
    rows = [("", "capture", "generated", ""), *((each.name, *each.text) for each in found.measures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  "
        + "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]
    return [*lines, *(f"  {line}" for line in verdict_lines(found))]


def verdict_lines(found: Closeness) -> list[str]:
    """The distances of the two captures, a sentence each."""

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    return [
        f"request sizes: KS distance {found.request_size_ks:.3f}",
        f"similarity {shown(found.similarity)} without the factors of storage, {shown(found.similarity_all)} with them",
        f"similarity {shown(found.similarity_expressed)} for the files that the description holds",
    ]
