"""HDF5 datasets of a capture: from H5D records, and from the files themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from dxt_replay.profiler_merge.hdf5 import inspect_file, mapped_path
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.replay.commands.main import cli
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import HDF5_SCHEMA
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, ModuleSpec, encode_counters, write_dxt_log

FILE, DATASET, OTHER = 71, 72, 73
RNG = np.random.default_rng(8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with a compressed, an uncompressed and a contiguous dataset."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "train.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "a/packed", data=RNG.integers(0, 9, (70, 64)), chunks=(30, 32), compression="gzip", shuffle=True
        )
        file.create_dataset("plain", data=RNG.integers(0, 255, (10, 300), dtype=np.uint8), chunks=(1, 300))
        file.create_dataset("whole", data=RNG.random(500))
        file["text"] = ["of variable", "length"]
    return path


def h5d_row(record: int, **counters: int) -> dict[str, Any]:
    return {"record_id": record, "file_id": FILE, **{f"H5D_{name}": value for name, value in counters.items()}}


def log_of(folder: Path, recorded: bytes, *rows: dict[str, Any], version: int = 2) -> Path:
    """A log that read 1000 bytes of the file, with these H5D records of `recorded`:/plain."""
    module = ModuleSpec(version=version, streams=[encode_counters("H5D", rows, version)])
    names = {FILE: recorded, DATASET: recorded + b":/plain", OTHER: recorded + b":/other"}
    record = DxtRecord(record_id=FILE, reads=[(4016, 300, 0.1, 0.2), (4316, 300, 0.3, 0.4)])
    return write_dxt_log(folder / "job.darshan", [record], names=names, extra_modules={"H5D": module})


CHUNKED = {"CHUNK_SIZE_D1": 64, "CHUNK_SIZE_D2": 32, "CHUNK_SIZE_D3": 10}


@pytest.mark.parametrize(
    ("version", "counters", "chunks"),
    [
        (2, {"DATASPACE_NDIMS": 3, **CHUNKED}, [10, 32, 64]),  # slowest dimension first
        (2, {"DATASPACE_NDIMS": 2}, []),
        (2, {"DATASPACE_NDIMS": 2, "CHUNK_SIZE_D1": 5}, None),
        (2, {"DATASPACE_NDIMS": 6, "CHUNK_SIZE_D1": 5, "CHUNK_SIZE_D2": 5}, None),
        (1, {"DATASPACE_NDIMS": 1}, []),  # names the file by the dataset
    ],
)
def test_records_tell_datasets_and_their_chunks(
    tmp_path: Path, version: int, counters: dict[str, int], chunks: list[int] | None
) -> None:
    row = h5d_row(DATASET, DATASPACE_NPOINTS=4000, DATATYPE_SIZE=4, **counters)
    if version == 1:
        del row["file_id"]
    log = log_of(tmp_path, b"/d/x.h5", row, {**row, "rank": 1}, h5d_row(OTHER, OPENS=1), version=version)
    merge([log], [], tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    (found,) = capture.hdf5.to_pylist()
    assert capture.files["record_id"].to_pylist()[found["file_id"]] == FILE
    assert (found["dataset"], found["type_size"], found["points"]) == ("/plain", 4, 4000)
    assert (found["chunk_shape"], found["chunk_offset"], found["filters"]) == (chunks, None, None)


def test_the_bundled_captures_know_their_datasets(tmp_path: Path) -> None:
    merge([sample("cosmictagger").log], [], tmp_path / "c.capture")
    table = open_capture(tmp_path / "c.capture").hdf5
    assert {row["dataset"]: row["chunk_shape"] for row in table.to_pylist()} == {"/pixels": [1, 2048], "/labels": [512]}
    assert table.schema.equals(HDF5_SCHEMA)
    merge([sample("imagenet").log], [], tmp_path / "d.capture")
    assert not (tmp_path / "d.capture" / "hdf5.parquet").exists()
    assert open_capture(tmp_path / "d.capture").hdf5.equals(HDF5_SCHEMA.empty_table())


def chunks_of(dataset):
    return list(zip(*(dataset[f"chunk_{name}"].tolist() for name in ("offset", "size", "mask")), strict=True))


def stored(path: Path, name: str) -> list[tuple[int, int, int]]:
    """(address, bytes, mask) of each chunk, in the order of the library's index."""
    with h5py.File(path) as file:
        chunks: list[tuple[int, int, int]] = []
        file[name].id.chunk_iter(lambda chunk: chunks.append((chunk.byte_offset, chunk.size, chunk.filter_mask)))
    return chunks


def test_inspecting_finds_every_chunk(source: Path) -> None:
    found = {dataset["dataset"]: dataset for dataset in inspect_file(os.fsencode(source))}
    assert found.keys() == {"/a/packed", "/plain", "/whole"}
    packed = found["/a/packed"]
    assert packed["filters"] == ["shuffle", "gzip"]
    assert (packed["shape"], packed["chunk_shape"], packed["type_size"]) == ([70, 64], [30, 32], 8)
    assert packed["chunk_index"].tolist() == list(range(6))
    assert chunks_of(packed) == stored(source, "a/packed")
    whole = found["/whole"]
    assert whole["chunk_shape"] == []
    raw = source.read_bytes()
    with h5py.File(source) as file:
        assert raw[whole["chunk_offset"][0] :][: whole["chunk_size"][0]] == file["whole"][...].tobytes()


def test_every_kind_of_chunk_index_is_read(tmp_path: Path) -> None:
    path = tmp_path / "latest.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("single", data=np.arange(100), chunks=(100,))
        file.create_dataset("fixed", data=np.arange(1000), chunks=(100,))
        file.create_dataset("growing", data=np.arange(990), chunks=(100,), maxshape=(None,), compression="gzip")
        file.create_dataset("tree", data=np.ones((10, 100)), chunks=(2, 10), maxshape=(None, None))
        file.create_dataset("empty", shape=(100,), chunks=(10,), dtype="f4")
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I8LE, h5py.h5s.create_simple((10,)), compact)
    found = {dataset["dataset"][1:]: dataset for dataset in inspect_file(os.fsencode(path))}
    assert {name: len(dataset["chunk_index"]) for name, dataset in found.items()} == {
        "single": 1, "fixed": 10, "growing": 10, "tree": 50,
    }  # fmt: skip
    for name, dataset in found.items():
        assert dataset["chunk_index"].tolist() == list(range(len(dataset["chunk_index"])))
        assert sorted(chunks_of(dataset)) == sorted(stored(path, name))


@pytest.mark.parametrize("content", [None, b"no HDF5 at all" * 100])
def test_what_cannot_be_inspected_is_told(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.h5").write_bytes(content)
    with pytest.raises(LogError, match=r"x\.h5"):
        inspect_file(os.fsencode(tmp_path / "x.h5"))
    with pytest.raises(LogError, match="not a regular file"):
        inspect_file(os.fsencode(tmp_path))


def test_merge_inspects_the_recorded_file_where_it_is_now(tmp_path: Path, source: Path) -> None:
    row = h5d_row(DATASET, DATASPACE_NDIMS=1, DATASPACE_NPOINTS=10, DATATYPE_SIZE=4)
    log = log_of(tmp_path, b"/gone/away/train.h5", row)
    args = ["merge", str(log), "-o", str(tmp_path / "c.capture"), "--map", f"/gone/away={source.parent}"]
    assert CliRunner().invoke(cli, args).exit_code != 0
    result = CliRunner().invoke(cli, [*args, "--inspect"])
    assert result.exit_code == 0, result.output
    found = {row["dataset"]: row for row in open_capture(tmp_path / "c.capture").hdf5.to_pylist()}
    assert found.keys() == {"/a/packed", "/plain", "/whole"}, "the file counts, not the records of it"
    chunks = zip(*(found["/plain"][f"chunk_{part}"] for part in ("offset", "size", "mask")), strict=True)
    assert list(chunks) == stored(source, "plain")


def test_a_file_that_is_gone_is_a_warning(tmp_path: Path) -> None:
    result = merge([log_of(tmp_path, b"/gone/train.h5")], [], tmp_path / "c.capture", MergeOptions(inspect=True))
    assert any("/gone/train.h5" in text and "inferred" in text for text in result.info.warnings)
    assert open_capture(tmp_path / "c.capture").hdf5.num_rows == 0


def test_the_longest_prefix_is_replaced() -> None:
    rules = [(b"/a", b"/x"), (b"/a/b", b"/y"), (b"/", b"/z")]
    assert mapped_path(b"/a/b/c.h5", rules) == b"/y/c.h5"
    assert mapped_path(b"/a/bc.h5", rules) == b"/x/bc.h5"
    assert mapped_path(b"/q", rules) == b"/z/q"
    assert mapped_path(b"/q", ()) == b"/q"
