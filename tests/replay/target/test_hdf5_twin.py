"""Twins of HDF5 files: what h5py reads of them, and where their chunks lie."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.replay.target.hdf5_layout import MAX_DATASETS, DatasetLayout, NoLayoutError, _checked
from dxt_replay.replay.target.hdf5_twin import hdf5_bytes, hdf5_content
from tests.examples import examples
from tests.replay.target.staging import HeldReader


def dataset(name, index, offset, size, *, shape, chunk=(), compressed=False, type_size=1):
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


def staged(path, *datasets, data_bytes=0, record_id=17):
    layout = _checked(datasets, "a test")
    content = hdf5_content(record_id, hdf5_bytes(layout, data_bytes), layout, data_bytes)
    path.write_bytes(b"".join(map(bytes, content.blocks())))
    assert path.stat().st_size == content.size
    assert content.first_difference(HeldReader(path.read_bytes()), 0, content.size) is None
    return content


def stored(item):
    chunks: list[tuple[int, int]] = []
    item.id.chunk_iter(lambda chunk: chunks.append((chunk.byte_offset, chunk.size)))
    return chunks


@st.composite
def layouts(draw):
    """A few datasets of any shape whose chunks lie apart, in any order, some of them compressed."""
    made, at = [], 96 + draw(st.integers(0, 300))
    for number in range(draw(st.integers(1, 4))):
        chunk = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
        grid = tuple(draw(st.integers(1, 4)) for _ in chunk)
        type_size = draw(st.sampled_from((1, 2, 3, 4, 8, 24)))
        chunk_bytes = int(np.prod(chunk)) * type_size
        compressed = draw(st.booleans())
        number_of_chunks = int(np.prod(grid))
        index = sorted(draw(st.sets(st.integers(0, number_of_chunks - 1), min_size=1, max_size=12)))
        size, offset = [], []
        for _ in index:
            size.append(draw(st.integers(1, 2 * chunk_bytes)) if compressed else chunk_bytes)
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
def test_h5py_reads_all_of_it_and_finds_the_chunks_where_they_were(tmp_path, datasets, data_bytes):
    staged(tmp_path / "twin.h5", *datasets, data_bytes=data_bytes)
    raw = (tmp_path / "twin.h5").read_bytes()
    with h5py.File(tmp_path / "twin.h5") as file:
        assert len(file) == len(datasets)
        for layout in datasets:
            item = file[layout.name[1:].replace("/", ".")]
            assert (item.shape, item.chunks) == (layout.shape, layout.chunk_shape)
            assert item.dtype.itemsize == layout.type_size
            assert (item.compression == "gzip") == layout.compressed
            assert stored(item) == list(zip(layout.offset.tolist(), layout.size.tolist(), strict=True))
            chunks = [item.id.get_chunk_info(number) for number in range(item.id.get_num_chunks())]
            data = [item.id.read_direct_chunk(chunk.chunk_offset)[1] for chunk in chunks]
            assert data == [raw[chunk.byte_offset :][: chunk.size] for chunk in chunks]
            if not layout.compressed:
                assert item[...].nbytes == int(np.prod(layout.shape)) * layout.type_size


def test_a_tree_of_several_levels_finds_every_chunk(tmp_path):
    count = 3000
    offset = (1000 + 24 * np.random.default_rng(2).permutation(count)).tolist()
    staged(tmp_path / "a", dataset("x", list(range(count)), offset, [16] * count, shape=(count, 16), chunk=(1, 16)))
    raw = (tmp_path / "a").read_bytes()
    with h5py.File(tmp_path / "a") as file:
        data = file["x"][...]
    assert all(data[i].tobytes() == raw[offset[i] : offset[i] + 16] for i in range(count))


def test_chunks_that_nobody_read_are_fill_values(tmp_path):
    staged(tmp_path / "a", dataset("x", [3], [500], [16], shape=(100,), chunk=(16,)))
    with h5py.File(tmp_path / "a") as file:
        data = file["x"][...]
    assert data[48:64].any()
    assert not data[:48].any()
    assert not data[64:].any()


def test_a_contiguous_dataset_lies_at_its_offset(tmp_path):
    staged(tmp_path / "a", dataset("x", [0], [777], [5000], shape=(5000,)))
    with h5py.File(tmp_path / "a") as file:
        assert file["x"].id.get_offset() == 777
        assert file["x"][...].tobytes() == (tmp_path / "a").read_bytes()[777:5777]


def test_as_many_datasets_as_there_may_be(tmp_path):
    many = [dataset(f"d{n}", [0], [200 + 8 * n], [8], shape=(8,), chunk=(8,)) for n in range(MAX_DATASETS)]
    staged(tmp_path / "a", *many)
    with h5py.File(tmp_path / "a") as file:
        assert {len(file[name][...]) for name in file} == {8}
        assert len(file) == MAX_DATASETS
    more = dataset("more", [0], [9000], [8], shape=(8,), chunk=(8,))
    with pytest.raises(NoLayoutError, match="257 datasets"):
        _checked((*many, more), "")


def test_names_are_told_apart_and_stay_in_the_root(tmp_path):
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
        (dataset("x", [0], [200], [99], shape=(16,), chunk=(16,)), "other sizes"),
        (dataset("x", [9], [200], [16], shape=(16,), chunk=(16,)), "more chunks"),
        (dataset("x", [0], [95], [16], shape=(16,), chunk=(16,)), "superblock"),
        (dataset("x", [0], [200], [9], shape=(1 << 33,), chunk=(1 << 33,), compressed=True), "more than HDF5 allows"),
    ],
)
def test_what_cannot_be_made_is_told(layout, reason):
    with pytest.raises(NoLayoutError, match=reason):
        _checked([layout], "")


def test_another_file_is_not_taken_for_a_twin(tmp_path):
    content = staged(tmp_path / "a", dataset("x", [0], [900], [16], shape=(16,), chunk=(16,)), record_id=4)
    data = bytearray((tmp_path / "a").read_bytes())
    other = hdf5_content(5, content.size, None, 0)
    assert other.first_difference(HeldReader(bytes(data)), 0, 4096) is not None
    data[:8] = bytes(8)
    found = content.first_difference(HeldReader(bytes(data)), 0, 4096)
    assert found is not None
    assert found[0] == 0
