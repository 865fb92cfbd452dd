"""`lanes.parquet`: what a source knows of each lane: its host, process, thread and role.

The writers of a capture's parts note the lanes that they write. So the table has one row for each of these, whatever
the source said of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import LANES_SCHEMA
from dxt_replay.traces.store.index import NOTES, OPS_FOLDER
from dxt_replay.traces.store.writer import write_table

LANES_NAME = "lanes.parquet"

_FACTS = [name for name in LANES_SCHEMA.names if name not in ("rank", "lane")]


def lanes_in(rank: np.ndarray, lane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int32 (lanes,): rank and lane of each lane in some operations, by rank and lane."""
    found = distinct_rows(rank, lane).values.astype(np.int32)
    return found[:, 0], found[:, 1]


def written_lanes(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """As `lanes_in`, of the operations that closed `OpsWriter`s wrote into a capture that is not complete yet.

    Raises: TargetError where their notes cannot be read.
    """
    ranks, lanes = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int32)]
    try:
        for path in sorted((directory / OPS_FOLDER).glob(NOTES)):
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    noted = file.read_row_group(group, columns=["rank", "usage.list.element.lane"])
                    usage = noted["usage"].combine_chunks()
                    lane = usage.flatten().field("lane").to_numpy()
                    of_usage = noted["rank"].to_numpy()[pc.list_parent_indices(usage).to_numpy()]
                    for kept, values in zip((ranks, lanes), lanes_in(of_usage, lane), strict=True):
                        kept.append(values)
    except (OSError, pa.ArrowException) as error:
        raise TargetError(f"cannot read the index of {directory}: {error}") from error
    return lanes_in(np.concatenate(ranks), np.concatenate(lanes))


def write_lanes(directory: Path, facts: pa.Table) -> None:
    """Write `lanes.parquet` for the operations that are in the capture; nothing where no fact is known of any lane.

    facts: rows of `LANES_SCHEMA`; lanes without operations are left out, and of several rows of a lane the first
    counts.
    Raises: TargetError when the disk refuses.
    """
    if all(facts[name].null_count == facts.num_rows for name in _FACTS):
        return
    rank, lane = written_lanes(directory)
    keys, first = np.unique(_keys(facts["rank"].to_numpy(), facts["lane"].to_numpy()), return_index=True)
    wanted = _keys(rank, lane)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    known = facts.take(pa.array(first[place], mask=keys[place] != wanted))
    columns = {"rank": pa.array(rank), "lane": pa.array(lane), **{name: known[name] for name in _FACTS}}
    table = pa.table([columns[name] for name in LANES_SCHEMA.names], schema=LANES_SCHEMA)
    write_table(directory / LANES_NAME, table, (("rank", "ascending"), ("lane", "ascending")))


def with_facts(lanes: pa.Table, names: Sequence[str]) -> pa.Table:
    """The lanes (`LANES_SCHEMA`) with the facts `names` alone; the others are null."""
    kept = {"rank", "lane", *names}
    columns = [lanes[each.name] if each.name in kept else pa.nulls(lanes.num_rows, each.type) for each in LANES_SCHEMA]
    return pa.table(columns, schema=LANES_SCHEMA)


def _keys(rank: np.ndarray, lane: np.ndarray) -> np.ndarray:
    return (rank.astype(np.int64) << 32) | lane
