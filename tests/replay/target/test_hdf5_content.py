"""Twins of HDF5 files: what h5py reads of them, and where their chunks lie."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.replay.hdf5.compressed_chunks import largest_stored, smallest_stored
from dxt_replay.replay.hdf5.file_metadata import MAX_DATASETS, can_be_made
from dxt_replay.replay.hdf5.layout import DatasetLayout, Hdf5Layout
from dxt_replay.replay.target.content import BLOCK_BYTES, Content
from dxt_replay.replay.target.hdf5_content import file_content, hdf5_bytes
from tests.examples import examples
from tests.replay.target.memory_target import MemoryReader


def dataset(
    name: str,
    index: list[int],
    offset: list[int],
    size: list[int],
    *,
    shape: tuple[int, ...],
    chunk: tuple[int, ...] = (),
    compressed: bool = False,
    type_size: int = 1,
) -> DatasetLayout:
    return DatasetLayout(
        name=name,
        type_size=type_size,
        shape=shape,
        chunk_shape=chunk,
        compressed=compressed,
        index=np.array(index, dtype=np.int64),
        offset=np.array(offset, dtype=np.int64),
        size=np.array(size, dtype=np.int64),
    )


def staged(path: Path, *datasets: DatasetLayout, data_bytes: int = 0, record_id: int = 17) -> Content:
    layout = Hdf5Layout(datasets=datasets, evidence="a test")
    assert can_be_made(layout) is None
    content = file_content(record_id, hdf5_bytes(layout, data_bytes), layout, data_bytes)
    path.write_bytes(b"".join(map(bytes, content.blocks())))
    assert path.stat().st_size == content.size
    assert content.first_difference(MemoryReader(path.read_bytes()), 0, content.size) is None
    return content


def stored(item: h5py.Dataset) -> list[tuple[int, int]]:
    chunks: list[tuple[int, int]] = []
    item.id.chunk_iter(lambda chunk: chunks.append((chunk.byte_offset, chunk.size)))
    return chunks


@st.composite
def layouts(draw: st.DrawFn) -> list[DatasetLayout]:
    """A few datasets of any shape whose chunks lie apart, in any order, some of them compressed."""
    made, at = [], 96 + draw(st.integers(0, 300))
    for number in range(draw(st.integers(1, 4))):
        chunk = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
        grid = tuple(draw(st.integers(1, 4)) for _ in chunk)
        type_size = draw(st.sampled_from((1, 2, 3, 4, 8, 24)))
        chunk_bytes = int(np.prod(chunk)) * type_size
        lowest, highest = smallest_stored(chunk_bytes), largest_stored(chunk_bytes)
        compressed = draw(st.booleans()) and lowest <= highest
        number_of_chunks = int(np.prod(grid))
        index = sorted(draw(st.sets(st.integers(0, number_of_chunks - 1), min_size=1, max_size=12)))
        size, offset = [], []
        for _ in index:
            size.append(draw(st.integers(lowest, highest)) if compressed else chunk_bytes)
            offset.append(at)
            at += size[-1] + draw(st.integers(0, 40))
        order = draw(st.permutations(range(len(index))))
        made.append(
            dataset(
                f"/group/set{number}",
                index,
                [offset[i] for i in order],
                [size[i] for i in order],
                shape=tuple(c * g - draw(st.integers(0, c - 1)) for c, g in zip(chunk, grid, strict=True)),
                chunk=chunk,
                compressed=compressed,
                type_size=type_size,
            )
        )
    return made


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layouts(), st.integers(0, 5000))
def test_h5py_reads_all_of_it_and_finds_the_chunks_where_they_were(
    tmp_path: Path, datasets: list[DatasetLayout], data_bytes: int
) -> None:
    staged(tmp_path / "twin.h5", *datasets, data_bytes=data_bytes)
    with h5py.File(tmp_path / "twin.h5") as file:
        assert len(file) == len(datasets)
        for layout in datasets:
            item = file[layout.name[1:].replace("/", ".")]
            assert (item.shape, item.chunks) == (layout.shape, layout.chunk_shape)
            assert item.dtype.itemsize == layout.type_size
            assert (item.compression == "gzip") == layout.compressed
            assert item[...].nbytes == int(np.prod(layout.shape)) * layout.type_size
            assert stored(item) == list(zip(layout.offset.tolist(), layout.size.tolist(), strict=True))


def test_a_tree_of_several_levels_finds_every_chunk(tmp_path: Path) -> None:
    count = 3000
    offset = (1000 + 24 * np.random.default_rng(2).permutation(count)).tolist()
    staged(tmp_path / "a", dataset("x", list(range(count)), offset, [16] * count, shape=(count, 16), chunk=(1, 16)))
    raw = (tmp_path / "a").read_bytes()
    with h5py.File(tmp_path / "a") as file:
        data = file["x"][...]
    assert all(data[i].tobytes() == raw[offset[i] : offset[i] + 16] for i in range(count))


def test_chunks_that_nobody_read_are_fill_values(tmp_path: Path) -> None:
    staged(tmp_path / "a", dataset("x", [3], [500], [16], shape=(100,), chunk=(16,)))
    with h5py.File(tmp_path / "a") as file:
        data = file["x"][...]
    assert data[48:64].any()
    assert not data[:48].any()
    assert not data[64:].any()


def test_a_contiguous_dataset_lies_at_its_offset(tmp_path: Path) -> None:
    staged(tmp_path / "a", dataset("x", [0], [777], [5000], shape=(5000,)))
    with h5py.File(tmp_path / "a") as file:
        assert file["x"].id.get_offset() == 777
        assert file["x"][...].tobytes() == (tmp_path / "a").read_bytes()[777:5777]


def test_as_many_datasets_as_there_may_be(tmp_path: Path) -> None:
    many = [dataset(f"d{n}", [0], [200 + 8 * n], [8], shape=(8,), chunk=(8,)) for n in range(MAX_DATASETS)]
    staged(tmp_path / "a", *many)
    with h5py.File(tmp_path / "a") as file:
        assert {len(file[name][...]) for name in file} == {8}
        assert len(file) == MAX_DATASETS
    more = dataset("more", [0], [9000], [8], shape=(8,), chunk=(8,))
    assert "datasets" in str(can_be_made(Hdf5Layout(datasets=(*many, more), evidence="")))


def test_names_are_told_apart_and_stay_in_the_root(tmp_path: Path) -> None:
    names = ["/a/b", "a.b", "", "../x", "."]
    staged(
        tmp_path / "a",
        *(dataset(n, [0], [200 + 8 * i], [8], shape=(8,), chunk=(8,)) for i, n in enumerate(names)),
    )
    with h5py.File(tmp_path / "a") as file:
        assert sorted(file) == sorted(["a.b", "a.b-2", "data", "...x", "data-2"])


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (dataset("x", [0], [200], [20], shape=(1 << 20,), chunk=(1 << 20,), compressed=True), "smaller than deflate"),
        (dataset("x", [0], [200], [99], shape=(16,), chunk=(16,)), "other sizes"),
        (dataset("x", [0], [200], [999], shape=(100,), chunk=(100,), compressed=True), "larger than deflate"),
        (dataset("x", [9], [200], [16], shape=(16,), chunk=(16,)), "more chunks"),
    ],
)
def test_what_cannot_be_made_is_told(layout: DatasetLayout, reason: str) -> None:
    assert reason in str(can_be_made(Hdf5Layout(datasets=(layout,), evidence="")))


def test_another_file_is_not_taken_for_a_twin(tmp_path: Path) -> None:
    content = staged(tmp_path / "a", dataset("x", [0], [900], [16], shape=(16,), chunk=(16,)), record_id=4)
    data = bytearray((tmp_path / "a").read_bytes())
    other = file_content(5, content.size, None, 0)
    assert other.first_difference(MemoryReader(bytes(data)), 0, 4096) is not None
    data[:8] = bytes(8)
    found = content.first_difference(MemoryReader(bytes(data)), 0, 4096)
    assert found is not None
    assert found[0] == 0


def test_a_compressed_chunk_that_lies_in_three_blocks(tmp_path: Path) -> None:
    size, stored_bytes = 4 * BLOCK_BYTES, 2 * BLOCK_BYTES
    offset = BLOCK_BYTES - 1000
    made = dataset("x", [0], [offset], [stored_bytes], shape=(size,), chunk=(size,), compressed=True)
    staged(tmp_path / "a", made)
    with h5py.File(tmp_path / "a") as file:
        data = file["x"][...]
    assert len(data) == size
    assert data[: stored_bytes // 2].any()
    assert stored(h5py.File(tmp_path / "a")["x"]) == [(offset, stored_bytes)]


def test_compressed_chunks_inflate_to_noise_of_their_own(tmp_path: Path) -> None:
    staged(
        tmp_path / "a",
        dataset("x", [0, 1], [900, 9000], [4000, 4000], shape=(2, 5000), chunk=(1, 5000), compressed=True),
    )
    with h5py.File(tmp_path / "a") as file:
        first, second = file["x"][...]
    assert np.mean(first[:3900] != second[:3900]) > 0.9
