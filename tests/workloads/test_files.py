"""Names and sizes of the files: against DLIO's own values, and against files that are written here."""

from __future__ import annotations

import io

import h5py
import numpy as np
import pytest

from dxt_replay.workloads.description import Dataset, Hdf5, Workload
from dxt_replay.workloads.files import data_set_files, hdf5_layout, record_bytes, record_length


def files_of(**dataset):
    return data_set_files(Workload(dataset=Dataset(**dataset)))[0]


def test_sizes_of_unet3d_are_those_of_dlio():
    of_records = {"record_length_bytes": 146600628, "record_length_bytes_stdev": 68341808}
    files = files_of(format="npz", num_files_train=168, **of_records)
    assert files.sample_bytes[:3].tolist() == [224_093_125, 93_582_835, 139_625_640]
    assert (files.sample_bytes.min(), files.sample_bytes.max()) == (46_888_650, 301_601_979)
    assert files.sample_bytes.mean() == pytest.approx(150.5e6, rel=1e-3)
    assert files.sample_bytes.std() == pytest.approx(49.6e6, rel=1e-3)
    assert files.total_bytes / 2**30 == pytest.approx(23.55, abs=0.005)
    assert files.sizes[0] == 224_093_125 + 8 + 490


def test_names_and_subfolders():
    data = Dataset(format="npz", num_files_train=12, num_files_eval=1, num_subfolders_train=10, data_folder="d/x/")
    train, evaluation = data_set_files(Workload(dataset=data))
    assert train.path(3) == "/d/x/train/03/img_03_of_12.npz"
    assert train.path(11) == "/d/x/train/01/img_11_of_12.npz"
    assert evaluation.path(0) == "/d/x/valid/img_0_of_1.npz"


ROW = ",".join(map(str, np.random.default_rng(1).integers(0, 255, 10_000))) + "\n"


def saved(save, *arrays, **named):
    """Bytes of what NumPy saves."""
    save(file := io.BytesIO(), *arrays, **named)
    return len(file.getvalue())


VALUES = np.zeros((100, 100, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("dataset", "size"),
    [
        ({"format": "npz", "num_samples_per_file": 3}, saved(np.savez, x=VALUES, y=[0] * 3)),
        ({"format": "npy", "num_samples_per_file": 3}, saved(np.save, VALUES)),
        *(
            ({"format": "npy", "record_dims": (7, 5), "record_element_type": kind}, 128 + 35 * np.dtype(kind).itemsize)
            for kind in ("uint8", "int16", "float32", "float64")
        ),
        ({"format": "jpeg", "record_length_bytes": 322_957}, 322_957),  # of MLPerf's generator
        ({"format": "csv", "num_samples_per_file": 7}, pytest.approx(7 * len(ROW), rel=0.01)),
    ],
)
def test_files_are_as_large_as_those_that_are_written(dataset, size):
    dataset = {"num_files_train": 1, "record_length_bytes": 10_000, **dataset}
    assert files_of(**dataset).sizes.tolist() == [size]
    if "record_dims" in dataset:
        assert record_length(Dataset(**dataset)) == size - 128


def test_a_tfrecord_has_the_overhead_of_its_example():
    sizes = np.array([1000, 16_383, 16_384, 2_097_151, 2_097_152])
    assert (record_bytes(sizes) - sizes).tolist() == [54, 58, 60, 64, 66]


@pytest.mark.parametrize(
    ("dims", "dataset"),
    [
        ((256, 256), {}), ((50, 60), {"num_samples_per_file": 64}),
        ((202, 202), {"chunk_size": 1024}), ((202, 202), {"chunk_size": 65536}),
        ((500, 500), {"compression": "gzip"}), ((500, 500), {"compression": "gzip", "compression_level": 9}),
        ((50, 50), {"compression": "lzf", "num_samples_per_file": 100}),
        ((50, 50), {"num_samples_per_file": 40, "hdf5": Hdf5(max_shape=(80, 80))}),
        ((4, 100, 100), {"record_element_type": "float32", "hdf5": Hdf5(num_dset_per_record=4)}),
        ((8, 100, 100), {"hdf5": Hdf5(num_dset_per_record=2, chunk_dims=(1, 4, 50, 50))}),
    ],
)  # fmt: skip
def test_hdf5_files_are_laid_out_as_h5py_does(tmp_path, dims, dataset):
    data = Dataset(format="hdf5", record_dims=dims if len(dims) == 3 else (), **dataset)
    layout = hdf5_layout(data, dims)
    path = tmp_path / "x.hdf5"
    write_as_dlio(path, data, layout)
    assert path.stat().st_size == layout.file_bytes
    with h5py.File(path) as file:
        for number, name in enumerate(layout.names):
            stored = file[name]
            assert (stored.chunks or ()) == layout.chunk_shape
            assert stored_offsets(stored) == layout.chunk_offsets(number).tolist()


def write_as_dlio(path, data, layout):
    records = np.random.default_rng(1).integers(0, 255, layout.shape).astype(data.record_element_type)
    options = {"compression": layout.filters[0]} if layout.filters else {}
    if layout.chunk_shape and (data.chunk_size or data.hdf5.chunk_dims):
        options["chunks"] = layout.chunk_shape
    if data.hdf5.max_shape:
        options["maxshape"] = (layout.shape[0], *data.hdf5.max_shape)
    with h5py.File(path, "w", libver="latest") as file:
        for name in layout.names:
            file.create_dataset(name, data=records, **options)
        file.create_dataset("labels", data=[0] * layout.shape[0])


def stored_offsets(stored):
    if stored.chunks is None:
        return [stored.id.get_offset()]
    found = []
    stored.id.chunk_iter(lambda chunk: found.append((chunk.chunk_offset, chunk.byte_offset)))
    return [offset for _, offset in sorted(found)]


@pytest.mark.parametrize("samples", [7, 40, 41, 60, 200])
def test_files_of_many_chunks_are_as_large_as_h5py_makes_them(tmp_path, samples):
    data = Dataset(format="hdf5", num_samples_per_file=samples, record_length_bytes=40_000, chunk_size=2100)
    layout = hdf5_layout(data, (200, 200))
    write_as_dlio(tmp_path / "x.hdf5", data, layout)
    assert (tmp_path / "x.hdf5").stat().st_size == layout.file_bytes
    with h5py.File(tmp_path / "x.hdf5") as file:
        assert samples < 40 or sorted(stored_offsets(file["records_0"]))[1:] == layout.chunk_offsets(0).tolist()[1:]


def values_of_dlio(shape, element):
    """Random values as DLIO draws them: float32 in [0, 1), spread over the range of whole numbers."""
    rng, kind = np.random.default_rng(3), np.dtype(element)
    if kind.kind == "f" and kind.itemsize >= 4:
        return rng.random(shape, dtype=kind)
    low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if kind.kind in "iu" else (0, 1)
    return (rng.random(shape, dtype=np.float32) * (high - low) + low).astype(kind)


@pytest.mark.parametrize(
    "element", ["uint8", "int8", "bool", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64"]
)
@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_compressed_hdf5_files_are_as_large_as_h5py_makes_them(tmp_path, element, compression):
    """Tolerance: 2 % of the data and 1 % of what it was; bool hardly leaves anything."""
    data = Dataset(
        format="hdf5", record_dims=(127, 1024), record_element_type=element, compression=compression,
        hdf5=Hdf5(chunk_dims=(1, 127, 256)),
    )  # fmt: skip
    layout = hdf5_layout(data, data.record_dims)
    values = values_of_dlio(layout.shape, element)
    with h5py.File(tmp_path / "x.hdf5", "w", libver="latest") as file:
        file.create_dataset("records_0", data=values, chunks=layout.chunk_shape, compression=compression)
    with h5py.File(tmp_path / "x.hdf5") as file:
        stored = file["records_0"].id.get_storage_size()
    assert layout.data_bytes == pytest.approx(stored, rel=0.02, abs=0.01 * values.nbytes)
