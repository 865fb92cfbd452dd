"""Changed Parquet files: other values, types and columns in a sound file, and damage in the footer."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq

_NUMBERS = (0, 1, -1, 2, 100, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 61) + 1, (1 << 62), (1 << 63) - 1, -(1 << 63))
_WORDS = ("read", "write", "mmap", "", "\0", "\x1b[2J", "..", "/../../etc", "=1", "<b>", "é", "a" * 5000)
_TYPES = (pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float64(), pa.string(), pa.binary(), pa.bool_())


def changed_footer(rng: random.Random, data: bytes) -> bytes:
    """One to four bytes of the footer changed, lost or added; its length is right."""
    length = int.from_bytes(data[-8:-4], "little")
    if not 0 < length <= len(data) - 8:
        return data
    body, footer = data[: -8 - length], bytearray(data[-8 - length : -8])
    for _ in range(rng.choice((1, 1, 2, 4))):
        place, kind = rng.randrange(len(footer)), rng.randrange(4)
        if kind == 0:
            footer[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            footer[place] = rng.choice((0, 1, 0x15, 0x16, 0x18, 0x19, 0x1C, 0x28, 0x7F, 0x80, 0xFF))
        elif kind == 2 and len(footer) > 1:
            del footer[place]
        else:
            footer.insert(place, rng.randrange(256))
    return body + bytes(footer) + len(footer).to_bytes(4, "little") + b"PAR1"


def changed_table(rng: random.Random, data: bytes) -> bytes:
    """Another value, type, number or order of columns or rows, written as a sound file."""
    try:
        table = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError):
        return data[: rng.randrange(len(data) + 1)]
    if not table.num_columns:
        return data
    kind = rng.randrange(8)
    place = rng.randrange(table.num_columns)
    if kind == 0:
        table = table.remove_column(place)
    elif kind == 1 and table.num_rows:
        table = table.take(pa.array([rng.randrange(table.num_rows) for _ in range(table.num_rows)]))
    elif kind == 2:
        table = table.slice(rng.randrange(table.num_rows + 1), rng.randrange(table.num_rows + 2))
    elif kind == 3 and table.num_rows:
        table = pa.concat_tables([table] * rng.choice((2, 3)))
    else:
        column = _changed_column(rng, table.column(place).combine_chunks())
        table = table.set_column(place, table.schema.names[place], column)
    sink = io.BytesIO()
    pq.write_table(
        table, sink, row_group_size=rng.choice((None, 3, 20)), write_statistics=rng.random() < 0.9,
        write_page_checksum=True,
    )  # fmt: skip
    return sink.getvalue()


def _changed_column(rng: random.Random, column: pa.Array) -> pa.Array:
    """Some values replaced, or all of them of another type."""
    values = column.to_pylist()
    kind = column.type
    if rng.random() < 0.15:
        kind = rng.choice(_TYPES)
    for _ in range(rng.choice((1, 1, 3, len(values)))):
        if values:
            values[rng.randrange(len(values))] = rng.choice((rng.choice(_NUMBERS), rng.choice(_WORDS), None, 0.5))
    try:
        return pa.array(values, type=kind.value_type if pa.types.is_dictionary(kind) else kind).cast(kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        kept = [rng.choice((0, 1, None)) if number else None for _ in values]
        return pa.array(kept, type=kind if number else pa.int64())
