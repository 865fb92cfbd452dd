"""Replaces temporary file numbers in the parts of a capture that is being written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.traces.errors import TargetError, exhausted
from dxt_replay.traces.schema import OPS_SCHEMA
from dxt_replay.traces.store.index import OPS_FOLDER
from dxt_replay.traces.store.writer import OpsWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class RenumberedParts:
    """Names of the parts that one `OpsWriter` wrote, in order, and the new number for each negative (temporary) file
    number."""

    parts: tuple[str, ...]
    numbers: Mapping[int, int]


def renumber(directory: Path, change: RenumberedParts) -> None:
    """Write parts of the capture in `directory` again, with the new numbers for the negative ones.

    Safe to repeat: numbers from 0 on stay. Raises: TargetError when the disk refuses.
    """
    if not change.parts:
        return
    again = directory / f".again-{change.parts[0]}"
    shutil.rmtree(again, ignore_errors=True)
    least = -min(change.numbers)
    number = np.full(least + 1, -1, dtype=np.int32)
    number[[-each for each in change.numbers]] = list(change.numbers.values())
    try:
        with OpsWriter(again) as writer:
            for part in change.parts:
                with pq.ParquetFile(directory / OPS_FOLDER / part) as opened:
                    for group in range(opened.num_row_groups):
                        writer.write(_renumbered(opened.read_row_group(group), number))
        for file in sorted((again / OPS_FOLDER).iterdir()):
            os.replace(file, directory / OPS_FOLDER / file.name)
        shutil.rmtree(again)
    except (OSError, pa.ArrowException) as error:
        remedy = exhausted(error) or "free space or choose another --output"
        raise TargetError(f"cannot write {directory}: {error}; {remedy}") from error


def _renumbered(rows: pa.Table, number: np.ndarray) -> pa.Table:
    for name in ("file_id", "other_file_id"):
        old = rows[name].fill_null(-1).to_numpy()
        new = np.where(old < -1, number[np.maximum(-old, 0)], old)
        mask = rows[name].is_null().to_numpy() if rows[name].null_count else None
        rows = rows.set_column(rows.schema.get_field_index(name), OPS_SCHEMA.field(name), pa.array(new, mask=mask))
    return rows
