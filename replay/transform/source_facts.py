"""What the changes need to know of a whole capture, what they assume, and the tables that they leave behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.plan.chosen_layers import LayerChoice
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.rank_changes import Facts
from dxt_replay.replay.transform.rank_work import MODELLED, TRANSFORMED, RankWork
from dxt_replay.replay.transform.read_data import data_set_of
from dxt_replay.replay.transform.request_cost import CostFit
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import COUNTERS, FILES_SCHEMA, OPS, READ, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_bytes, format_duration


def facts_of(capture: Capture, layers: LayerChoice, changes: Changes) -> Facts:
    """The facts of a capture. Raises: UsageError where a change has no meaning for it."""
    data = data_set_of(capture, layers)
    fit = CostFit()
    for batch in capture.operations(
        columns=["op", "api", "file_id", "origin", "offset", "length", "start_ns", "end_ns"]
    ):
        mine = layers.replayed(batch)
        lasted = batch.column("end_ns").to_numpy() - batch.column("start_ns").to_numpy()
        fit.add(codes(batch, "op")[mine], batch.column("length").to_numpy()[mine], lasted[mine])
    if changes.compression is not None:
        _check_not_compressed(capture, data.files & data.hdf5)
    if changes.transfer_bytes is not None:
        data.streams()
    chunked = data.chunked(capture) if changes.chunk_bytes is not None else data.known_chunks()
    return Facts(data=data, chunked=chunked, cost=fit.cost(READ), layers=layers)


def _check_not_compressed(capture: Capture, hdf5: np.ndarray) -> None:
    """Raises: UsageError where the data are compressed already."""
    earlier = [each["changes"] for each in capture.info.made_by.get("transforms", [])]
    filters = {name for row in capture.hdf5.to_pylist() if hdf5[row["file_id"]] for name in row["filters"] or ()}
    if any("compression" in changes for changes in earlier) or filters:
        by = f"by {', '.join(sorted(filters))}" if filters else "by an earlier transform"
        raise UsageError(f"--compression: the data of {capture.named} are compressed already, {by}")


def assumptions_of(changes: Changes, facts: Facts, copied: bool) -> tuple[str, ...]:
    """What the changes assume, as sentences."""
    cost, found = facts.cost, []
    if changes.requests_change:
        bandwidth = f"{format_bytes(1e9 / cost.ns_per_byte)}/s" if cost.ns_per_byte else "no limit to bandwidth"
        found.append(
            f"a changed read takes a latency of {format_duration(cost.latency_ns)} and what its bytes took in the "
            f"capture (least squares over its {cost.requests} reads; {bandwidth})"
        )
    if changes.chunk_bytes is not None:
        found.append(
            "index and header reads stay as they are, records lie in a row, and a chunk that is larger than a record "
            "is read whole only where records are read in random order"
        )
    if changes.compression is not None:
        speed = format_bytes(changes.compression.bytes_per_s)
        found.append(
            f"all data shrink by the same ratio, and a decoder in the reader's lane puts out {speed}/s after each read"
        )
    if changes.batch_times is not None:
        found.append(
            "a step of a larger batch computes as long as its steps together did, has one collective, and as many "
            "batches are read ahead as before"
        )
    if changes.preprocess_speed != 1.0:
        found.append("all time between the reads of a reader, and after the last one of a batch, is preprocessing")
    if changes.compute_speed != 1.0:
        found.append("all time of the training thread between its events is compute; collectives cost what they cost")
    if changes.requests_change or changes.pipeline_changes or changes.compute_speed != 1.0:
        found.append("storage serves each request as in the capture, however many are in flight")
    if copied:
        found.append("copied ranks take the recorded times: neither storage nor collectives slow down with more ranks")
    return tuple(found)


def changed_files(capture: Capture, works: Sequence[RankWork]) -> pa.Table:
    """The files table: a file whose requests changed has no counters, and the size that its requests need."""
    files = capture.files
    touched, ends = np.zeros(files.num_rows, dtype=bool), np.zeros(files.num_rows, dtype=np.int64)
    for work in works:
        touched[work.file_id[np.isin(work.origin, (TRANSFORMED, MODELLED))]] = True
        reads = np.isin(work.op, (READ, OPS.index("write")))
        np.maximum.at(ends, work.file_id[reads], np.maximum(work.offset, 0)[reads] + work.length[reads])
    sizes = np.where(touched, ends, files["size"].to_numpy())
    columns = {name: files[name] for name in FILES_SCHEMA.names}
    columns["size"] = pa.array(sizes)
    for name in ("coverage", *COUNTERS):
        columns[name] = pc.if_else(
            pa.array(touched), pa.nulls(files.num_rows, FILES_SCHEMA.field(name).type), files[name]
        )
    return pa.table(columns, schema=FILES_SCHEMA)


def changed_hdf5(capture: Capture, changes: Changes, facts: Facts) -> pa.Table:
    """The HDF5 datasets that are still as they were."""
    if changes.chunk_bytes is None and changes.compression is None:
        return capture.hdf5
    gone = [file.file_id for file in facts.chunked]
    return capture.hdf5.filter(pc.invert(pc.is_in(capture.hdf5["file_id"], pa.array(gone, type=pa.int32()))))
