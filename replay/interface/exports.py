"""Writes a capture for people (an HTML page) and for other tools (files of their formats)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.options.choices import FORMATS, PathLike
from dxt_replay.replay.options.looking import ExportChoices, PairChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of, part_replayed
from dxt_replay.traces.store.relation import Relation, check_pair
from dxt_replay.traces.workers import Work, Workers, workers_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.profiler_merge.analysis.overview import Overview
    from dxt_replay.profiler_merge.export.exported import Exported
    from dxt_replay.replay.compare.noise import NoiseFloor
    from dxt_replay.traces.store.reader import Capture

EVERYTHING = Part()

_TARGET_MISSING = "--to fio needs --target DIR: the directory that `dxt-replay stage` builds the twin in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The page that `report` wrote, and its size."""

    path: Path
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay report --json` prints."""
        return {"report": str(self.path), "bytes": self.bytes}

    def _repr_html_(self) -> str:
        from html import escape

        name = escape(str(self.path))
        return f'<a href="{name}">{name}</a>'


@takes(PairChoices)
def report(
    capture: CaptureOrPath,
    replay: CaptureOrPath | None = None,
    *,
    output: PathLike,
    chosen: Part = EVERYTHING,
    force: bool = False,
    executor: Work = None,
    **choices: Unpack[PairChoices],
) -> Report:
    """Write a page about a capture, or about a source and its replay side by side: one HTML file, no network needed.

        dxt_replay.report("run.capture", output="report.html")

    `chosen`: the part of both that the page shows. `force` replaces an earlier file. `executor` shares the work.
    Raises: UsageError when the two are not source and replay, for a window of time of two captures, or a `floor` that
    is not of this job; TargetError for `output`.
    """
    from dxt_replay.traces.output import check_output, new_file

    pair = filled(PairChoices, choices)
    floor = pair["floor"]
    if replay is not None and chosen.is_window:
        raise UsageError("--from and --until are times of one capture: leave them out where there are two")
    if replay is None and floor:
        raise UsageError("--floor needs a replay beside the capture: name both, or leave the option out")
    check_output(Path(output), force=force)
    with ExitStack() as stack:
        source = stack.enter_context(opened(capture))
        if replay is None:
            text = _page(source, chosen, workers_of(executor))
        else:
            replayed = stack.enter_context(opened(replay))
            relation = check_pair(source, replayed, different_runs=pair["different_runs"])
            noise = None
            if floor:
                from dxt_replay.replay.interface.comparisons import floor_of

                noise = floor_of(stack, floor, source, replayed)
            text = _page_of_two(source, replayed, chosen, relation, noise, workers_of(executor))
    encoded = text.encode("utf-8", "replace")
    with new_file(Path(output), force=force) as stream:
        stream.write(encoded)
    return Report(path=Path(output), bytes=len(encoded))


def _page(source: Capture, chosen: Part, workers: Workers) -> str:
    from dxt_replay.replay.show.page.page import report_page

    return report_page(_overview(part_of(source, chosen), 1, workers))


def _overview(capture: Capture, captures: int, workers: Workers) -> Overview:
    """The figures of a capture on a page, with its storage limit. On a page of two captures each has half the bars."""
    from dxt_replay.profiler_merge.analysis.bars import MOST_BARS
    from dxt_replay.profiler_merge.analysis.overview import overview
    from dxt_replay.replay.interface.analyses import limit_of

    limit = limit_of(capture, curve=True)
    return overview(capture, most_bars=MOST_BARS // captures, workers=workers, limit=limit)


def _page_of_two(
    source: Capture, replay: Capture, chosen: Part, relation: Relation, floor: NoiseFloor | None, workers: Workers
) -> str:
    """The page of two captures. It shows only the replayed part of a source."""
    from dxt_replay.replay.compare.comparison import compare
    from dxt_replay.replay.show.page.chart_data import lag_course
    from dxt_replay.replay.show.page.page import report_page

    compared = source if relation is Relation.DIFFERENT else part_replayed(source, replay)
    return report_page(
        _overview(part_of(compared, chosen), 2, workers),
        _overview(part_of(replay, chosen), 2, workers),
        compare(source, replay, relation=relation, floor=floor, workers=workers),
        lag_course(replay),
    )


@takes(ExportChoices)
def export(
    capture: CaptureOrPath,
    to: str,
    output: PathLike,
    *,
    force: bool = False,
    **choices: Unpack[ExportChoices],
) -> Exported:
    """Write a capture in the format `to` (one of FORMATS) for other tools. The result lists what it cannot hold.

    `force` replaces an earlier export.

        dxt_replay.export("run.capture", "chrome", "run.json.gz").notes

    Raises: UsageError for a format that is not known, or without `target`; TargetError for `output`.
    """
    target = filled(ExportChoices, choices)["target"]
    if to not in FORMATS:
        raise UsageError(f"{to!r} is not a format: choose {', '.join(FORMATS)}")
    if to == "fio" and target is None:
        raise UsageError(_TARGET_MISSING)
    if target is not None and to != "fio":
        raise UsageError(f"--target is for --to fio, not for --to {to}: leave it out")
    path = Path(output)
    with opened(capture) as source:
        if to == "chrome":
            from dxt_replay.profiler_merge.export.chrome import write_chrome

            return write_chrome(source, path, force=force)
        if to == "csv":
            from dxt_replay.profiler_merge.export.csv_rows import write_csv

            return write_csv(source, path, force=force)
        if to == "darshan":
            from dxt_replay.profiler_merge.export.darshan import write_darshan

            return write_darshan(source, path, force=force)
        assert target is not None
        return _fio(source, path, target, force)


def _fio(source: Capture, output: Path, target: PathLike, force: bool) -> Exported:
    from dxt_replay.profiler_merge.export.fio import write_fio
    from dxt_replay.replay.plan.layers import choose_layers
    from dxt_replay.replay.target.data_set import twin_data_set
    from dxt_replay.replay.target.manifest import read_manifest
    from dxt_replay.replay.target.targets import directory_named, open_target

    with open_target(directory_named(target, "export --to fio")) as opened:
        data = twin_data_set(source, opened.base, (), read_manifest(opened))
    paths = [placement.path for placement in data.placements]
    replayed = choose_layers(source).replayed
    return write_fio(source, output, paths=paths, replayed=replayed, force=force)
