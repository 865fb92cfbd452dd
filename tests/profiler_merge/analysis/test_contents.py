from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.contents import contents
from tests.capture_builder import File, build_capture


def tfrecord(path: Path, lengths: list[int]) -> File:
    frames = [length.to_bytes(8, "little") + b"crc1" + b"x" * length + b"crc2" for length in lengths]
    path.write_bytes(b"".join(frames))
    return File(str(path), format="tfrecord")


def test_tfrecord_files_have_records(tmp_path: Path) -> None:
    files = [tfrecord(tmp_path / "a", [10, 30, 20]), tfrecord(tmp_path / "b", [])]
    found = contents(build_capture(tmp_path, files=files)).tfrecords.to_pylist()
    assert found[0] == {
        "file_id": 0,
        "path": str(tmp_path / "a"),
        "size_bytes": 3 * 16 + 60,
        "records": 3,
        "least_bytes": 10,
        "most_bytes": 30,
        "mean_bytes": 20,
    }
    assert (found[1]["records"], found[1]["mean_bytes"]) == (0, None)


def test_hdf5_files_have_datasets_and_chunks(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("train/x", data=[[1.0] * 8] * 6, chunks=(2, 8), compression="gzip", dtype="f4")
        file.create_dataset("y", data=[1, 2, 3], dtype="i8")
    files = [File(str(tmp_path / "a.h5"), format="hdf5")]
    first, second = contents(build_capture(tmp_path, files=files)).datasets.to_pylist()
    assert {name: first[name] for name in ("dataset", "shape", "type", "chunk", "chunk_bytes", "filter")} == {
        "dataset": "train/x",
        "shape": "6x8",
        "type": "float32",
        "chunk": "2x8",
        "chunk_bytes": 64,
        "filter": "gzip",
    }
    assert (first["chunks_stored"], first["bytes"]) == (3, 192)
    assert 0 < first["stored_bytes"] < 192
    assert (second["dataset"], second["chunk"], second["stored_bytes"]) == ("y", None, 24)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    torn = tfrecord(tmp_path / "torn", [10, 30])
    (tmp_path / "torn").write_bytes((tmp_path / "torn").read_bytes()[:-1])
    (tmp_path / "no.h5").write_bytes(b"text")
    files = [torn, File(str(tmp_path / "gone"), format="tfrecord"), File(str(tmp_path / "no.h5"), format="hdf5"), "/x"]
    found = contents(build_capture(tmp_path, files=files))
    assert (found.tfrecords.num_rows, found.datasets.num_rows) == (0, 0)
    assert list(found.unread) == [str(tmp_path / name) for name in ("torn", "gone", "no.h5")]
    assert "record 1 ends beyond" in found.unread[str(tmp_path / "torn")]
