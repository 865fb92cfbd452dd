"""The table of lanes: the operations of each, and what the source knows of it."""

from __future__ import annotations

import pyarrow as pa

from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.schema import USAGE_SCHEMA
from dxt_replay.traces.store.reader import Capture

_KEYS = ["rank", "lane"]


def lane_table(capture: Capture) -> pa.Table:
    """A row for each lane with operations (`TABLES["lanes"]`), by rank and lane.

    Raises: CaptureError when the capture is damaged.
    """
    used = (USAGE_SCHEMA.empty_table(), *capture.usages())
    counted = [_by_lane(table.select([*_KEYS, "operations"])) for table in used]
    facts = capture.lanes.set_column(
        capture.lanes.schema.get_field_index("role"), "role", capture.lanes["role"].cast(pa.string())
    )
    found = _by_lane(pa.concat_tables(counted)).join(facts, _KEYS).sort_by([(name, "ascending") for name in _KEYS])
    schema = TABLES["lanes"].schema
    return found.select(schema.names).cast(schema)


def _by_lane(table: pa.Table) -> pa.Table:
    found = table.group_by(_KEYS, use_threads=False).aggregate([(table.column_names[-1], "sum")])
    return found.rename_columns([*_KEYS, "calls"])
