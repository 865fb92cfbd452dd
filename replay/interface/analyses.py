"""Totals, tables and findings of a capture."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from dxt_replay.profiler_merge.analysis.tables import GROUPINGS
from dxt_replay.profiler_merge.analysis.tables import TABLES as ANALYSES
from dxt_replay.replay.interface.captures import CaptureOrPath, held, opened
from dxt_replay.replay.interface.merging import path_maps
from dxt_replay.replay.options.choices import PathMaps
from dxt_replay.replay.options.looking import TableChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import Work, workers_of

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa
    from typing_extensions import Unpack

    from dxt_replay.profiler_merge.analysis.finding import Finding
    from dxt_replay.profiler_merge.analysis.named_tables import Views
    from dxt_replay.profiler_merge.analysis.summary import Summary
    from dxt_replay.profiler_merge.analysis.timeline import Timeline
    from dxt_replay.traces.storage_limit import Limit, StorageLimit

GROUPS = tuple(f"by-{name}" for name in GROUPINGS)
"""Tables of totals per group."""

STORED = ("operations", "spans")
"""Tables as the capture stores them, read whole: take a `part` of a large capture first."""

TABLES = (*ANALYSES, *GROUPS, *STORED)
"""Names that `table` takes; "tfrecords" and "datasets" open the recorded files."""


def summary(capture: CaptureOrPath, *, executor: Work = None) -> Summary:
    """Totals of a capture: operations, bytes, times, transfer sizes, access pattern, steps, coverage.

        dxt_replay.summary("run.capture").bytes.read

    Totals count traced operations, and a file once if several layers recorded it. `executor` shares the work.
    Raises: CaptureError when the capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis.summary import summarise

    with opened(capture) as source:
        return summarise(source, workers=workers_of(executor))


def storage_limit(capture: CaptureOrPath, *, curve: bool = False) -> StorageLimit:
    """How long a training would take with infinitely fast storage, by its causal model.

        limit = dxt_replay.storage_limit("run.capture", curve=True)
        limit.limit_pct, limit.enough

    `curve`: also at multiples of the recorded speed. The capture needs training steps.
    Raises: NoStorageLimitError (a ReplayError) with the reason why the limit is unknown; CaptureError when the
    capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis.steady_loop import waits_are_real
    from dxt_replay.replay.causal.storage_limit import storage_limit as work_out
    from dxt_replay.traces.storage_limit import NoStorageLimitError

    with opened(capture) as source:
        if not waits_are_real(source.info):
            raise NoStorageLimitError("a replay at this pace does not wait as training does")
        return work_out(source, curve=curve)


def table(capture: CaptureOrPath, name: str, *, maps: PathMaps | None = None, executor: Work = None) -> pd.DataFrame:
    """One of TABLES as a DataFrame; units are in the column names.

        steps = dxt_replay.table(capture, "steps")
        steps.sort_values("duration_ns").tail(5)

    `maps`: places of the recorded files, which the tables "tfrecords" and "datasets" open. `attrs["unread"]` of these
    tables lists the files that could not be opened, with the reason.
    Raises: UsageError for another name; CaptureError when the capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis.named_tables import summary_table
    from dxt_replay.profiler_merge.analysis.patterns import RankFiles
    from dxt_replay.profiler_merge.analysis.table_formats import to_pandas

    check_tables([name], TABLES)
    with opened(capture) as source:
        if name in STORED:
            return to_pandas(_stored_table(source, name))
        if name in GROUPS:
            return to_pandas(summary_table(tables(source, by=name.removeprefix("by-"), executor=executor).summary))
        made = tables(source, (name,), maps=maps, executor=executor)
        found = made.tables[name]
        frame = to_pandas(found.table() if isinstance(found, RankFiles) else found)
        if made.unread:
            frame.attrs["unread"] = dict(made.unread)
        return frame


@takes(TableChoices)
def tables(
    capture: CaptureOrPath,
    names: Collection[str] = (),
    *,
    executor: Work = None,
    **choices: Unpack[TableChoices],
) -> Views:
    """The summary and several tables of the analysis in as few passes as they need, as Arrow tables.

        made = dxt_replay.tables(capture, ["steps", "files"], by="rank")
        made.summary, made.tables["steps"]

    `executor` shares the work.
    Raises: CaptureError when the capture is damaged; UsageError for another name, too many bins, or the table
    "dependencies" of too many operations.
    """
    from dxt_replay.profiler_merge.analysis.named_tables import STORAGE_LIMIT, views
    from dxt_replay.traces.units import parse_duration_ns

    def located(path: str) -> Path:
        from dxt_replay.replay.target.placement import locate

        return locate(path, rules)

    check_tables(names)
    chosen = filled(TableChoices, choices)
    rules, width = path_maps(chosen["maps"]), chosen["bin"]
    # Not opened for a time only: the table "rank-files" is read from the capture when it is used.
    source = held(capture)
    asked = not names or STORAGE_LIMIT in names or "findings" in names  # no more is at stake than storage costs
    limit = limit_of(source, curve=STORAGE_LIMIT in names) if asked else None
    return views(
        source,
        names,
        by=chosen["by"],
        bin_ns=None if width is None else parse_duration_ns(width, "--bin"),
        bins=chosen["bins"],
        locate=located,
        limit=limit,
        dependencies=lambda: _dependency_table(source),
        model=lambda: _model(source),
        workers=workers_of(executor),
    )


def check_tables(names: Collection[str], known: Collection[str] = ANALYSES) -> None:
    """Raises: UsageError for a name that is none of `known`."""
    for name in names:
        if name not in known:
            raise UsageError(f"{name!r} is not a table: choose {', '.join(known)}")


def limit_of(capture: Capture, *, curve: bool) -> Limit | None:
    """`storage_limit`, or the reason why it is unknown; None for a capture without a training that waits."""
    from dxt_replay.profiler_merge.analysis.steady_loop import waits_are_real
    from dxt_replay.traces.schema import SPAN_KINDS, codes
    from dxt_replay.traces.storage_limit import NoStorageLimitError

    if not waits_are_real(capture.info) or SPAN_KINDS.index("step") not in codes(capture.spans, "kind"):
        return None
    try:
        return storage_limit(capture, curve=curve)
    except NoStorageLimitError as error:
        return error


def _dependency_table(capture: Capture) -> pa.Table:
    """The causal model as the table dependencies. Raises: as `dependency_rows`."""
    from dxt_replay.profiler_merge.analysis.named_tables import DEPENDENCIES
    from dxt_replay.profiler_merge.analysis.table_formats import table_of
    from dxt_replay.replay.causal.explain import dependency_rows

    return table_of(dependency_rows(capture), ANALYSES[DEPENDENCIES].schema)


def _model(capture: Capture) -> dict[str, Any] | None:
    from dxt_replay.replay.causal.explain import explanation

    return explanation(capture)


def _stored_table(capture: Capture, name: str) -> pa.Table:
    import pyarrow as pa

    from dxt_replay.traces.schema import OPS_SCHEMA

    if name == "spans":
        return capture.spans
    return pa.Table.from_batches(capture.operations(columns=OPS_SCHEMA.names), schema=OPS_SCHEMA)


def findings(capture: CaptureOrPath, *, executor: Work = None) -> tuple[Finding, ...]:
    """Find problems in a capture; each finding has its evidence, threshold and remedy.

        for finding in dxt_replay.findings(capture):
            print(finding.title, finding.remedy)

    Raises: CaptureError when the capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis.findings import findings as find

    with opened(capture) as source:
        limit = limit_of(source, curve=False)
        return find(source, workers_of(executor), None if limit is None else limit.saved_between_s)


def timeline(
    capture: CaptureOrPath,
    *,
    bin: str | None = None,
    bins: int | None = None,
    per_rank: bool = False,
    executor: Work = None,
) -> Timeline:
    """Operations, bytes, bandwidth and shares of time over time, in bins of `bin` ("100ms") or in about `bins` bins.

        course = dxt_replay.timeline(capture, bin="100ms")
        course.matrix("read_mib_s")

    Raises: UsageError for too many bins; CaptureError when the capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis import timeline as module
    from dxt_replay.traces.units import parse_duration_ns

    width = None if bin is None else parse_duration_ns(bin, "bin (--bin)")
    count = module.DEFAULT_BINS if bins is None else bins
    with opened(capture) as source:
        return module.timeline(source, bin_ns=width, bins=count, per_rank=per_rank, workers=workers_of(executor))
