"""The lines of a manifest, written from columns and read into them.

`replay.target.manifest` says what they are. `parse` takes lines that are as `lines` writes them and no others: what it
made of them is written again and held against them.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from dxt_replay.replay.target.manifest_files import BELOW_A_ROOT, STATES, ManifestFiles
from dxt_replay.replay.target.path_columns import TEXT, booleans, column, is_ascending, text_bytes

_TO_ESCAPE = r"[^ !#-\[\]-~]"
_NOT_CONTAINED = r"(^|/)(\.?\.?)(/|$)|\x00"
"""A name that is empty, `.` or `..`, or a NUL."""

_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.uint64()),
        ("record_id", pa.uint64()),
        ("sparse", pa.bool_()),
        ("state", pa.string()),
        ("data_bytes", pa.uint64()),
        ("layout", pa.string()),
        ("written", pa.bool_()),
    ]
)


def lines(files: ManifestFiles) -> bytes:
    """The entries as `json.dumps` would write them, one line each, with `,` and a newline after each."""
    rest = np.full(len(files), None, dtype=object)
    rest[files.written] = ', "written": true'
    for row in np.flatnonzero(booleans(pc.or_(files.data_bytes.is_valid(), files.layout.is_valid()))).tolist():
        entry = files.entry(row)
        values = {name: getattr(entry, name) for name in ("data_bytes", "layout", "written")}
        rest[row] = ", " + json.dumps({name: value for name, value in values.items() if value is not None})[1:-1]
    texts = (
        '{"path": "',
        _escaped(files.path),
        '", "size": ',
        pa.array(files.size).cast(TEXT),
        ', "record_id": ',
        pa.array(files.record_id).cast(TEXT),
        ', "sparse": ',
        _chosen(files.sparse.astype(np.int8), ("false", "true")),
        ', "state": "',
        _chosen(files.state, STATES),
        '"',
        pa.array(rest, TEXT).fill_null("") if any(rest) else "",
        "},\n",
        "",
    )
    joined = pc.binary_join_element_wise(*(pa.scalar(t, TEXT) if isinstance(t, str) else t for t in texts))
    data, bounds = text_bytes(joined)
    return data[bounds[0] : bounds[-1]].tobytes()


def _chosen(codes: np.ndarray, texts: tuple[str, ...]) -> pa.LargeStringArray:
    return pa.DictionaryArray.from_arrays(codes, pa.array(texts, TEXT)).cast(TEXT)


def _escaped(paths: pa.LargeStringArray) -> pa.LargeStringArray:
    """The paths as in JSON, without the quotes."""
    odd = pc.match_substring_regex(paths, _TO_ESCAPE)
    if not pc.any(odd).as_py():
        return paths
    escaped = [json.dumps(path)[1:-1] for path in paths.filter(odd).to_pylist()]
    return pc.replace_with_mask(paths, odd, column(escaped))


def parse(text: bytes) -> ManifestFiles:
    """The entries of `text`, lines as `lines` writes them. Raises: ValueError where any line is not one of those."""
    if not text.isascii():  # Arrow takes bytes that are not UTF-8 for text
        raise ValueError("a line is not as it would be written")
    options = pj.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="error")
    # The comma between two entries is not part of either; whatever else was replaced is noticed below.
    table = pj.read_json(
        pa.BufferReader(text.replace(b"},\n", b"}\n")),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=options,
    )
    if any(table[name].null_count for name in ("path", "size", "record_id", "sparse", "state")):
        raise ValueError("an entry lacks a value")
    state = pc.index_in(table["state"], value_set=pa.array(STATES))
    files = ManifestFiles(
        path=column(table["path"]),
        size=table["size"].to_numpy(),
        record_id=table["record_id"].to_numpy(),
        sparse=table["sparse"].to_numpy(),
        state=state.fill_null(-1).to_numpy().astype(np.int8),
        written=table["written"].fill_null(False).to_numpy(),
        data_bytes=table["data_bytes"].combine_chunks(),
        layout=table["layout"].combine_chunks(),
    )
    ours = pc.and_(
        pc.match_substring_regex(files.path, BELOW_A_ROOT),
        pc.invert(pc.match_substring_regex(files.path, _NOT_CONTAINED)),
    )
    if (files.state < 0).any() or not pc.all(ours).as_py() or not is_ascending(files.path):
        raise ValueError("an entry is not valid, or not in its place")
    if lines(files) != text:
        raise ValueError("a line is not as it would be written")
    return files
