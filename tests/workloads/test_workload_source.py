"""Descriptions by file and by name, and that any text ends in a workload or in one clear error."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.data_set_files import data_set_files
from dxt_replay.workloads.description import READINGS
from dxt_replay.workloads.keys import KEYS, NOT_FOLLOWED, SPELLINGS
from dxt_replay.workloads.workload_source import SHIPPED, read_workload, shipped_names
from dxt_replay.workloads.workload_values import workload_from_values
from tests.examples import examples

TEXT = "framework: pytorch\ndataset: {format: npz}\nreader: {data_loader: pytorch, batch_size: 3}\n"


def test_a_file_is_read_with_its_digest_and_overrides(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(TEXT)
    workload = read_workload(path, ["++workload.reader.batch_size=5", "train.epochs=2"]).workload
    assert (workload.reader.batch_size, workload.train.epochs) == (5, 2)
    assert workload.source.name == str(path)
    assert workload.source.sha256 == hashlib.sha256(TEXT.encode()).hexdigest()
    assert workload.source.overrides == ("++workload.reader.batch_size=5", "train.epochs=2")


def test_maps_of_overrides_are_merged_and_keys_deleted(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(TEXT + "train: {computation_time: {mean: 1, stdev: 0.5}}\n")
    train = read_workload(path, ["train.computation_time={mean:2}"]).workload.train
    assert train.computation_time.parameters == (2.0, 0.5)
    assert read_workload(path, ["~train.computation_time"]).workload.train.computation_time.mean_s == 0


@pytest.mark.parametrize(
    "section", ["storage.storage_options.secret_access_key={}", "storage.storage_options={{k:{}}}"]
)
def test_access_keys_are_not_kept(tmp_path, section):
    path = tmp_path / "w.yaml"
    path.write_text(TEXT + "storage: {storage_options: {access_key_id: hush1}}\n")
    for override in (
        section.format("hush2"),
        f"++workload.{section}".format("hush3"),
        "storage={storage_options:{k:hush4}}",
    ):
        found = read_workload(path, [override])
        assert "hush" not in repr(found)
        assert "storage.storage_options" in {note.key for note in found.notes}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("unet3", None, "did you mean unet3d_"),
        ("nothing_like_it", None, "--list"),
        (".", None, "folder without"),
        ("w.yaml", b"\xff\xfe\x00", "cannot be read as text"),
        ("w.yaml", b"", "not a workload description"),
        ("w.yaml", b"- a", "not a workload description"),
        ("w.yaml", b"hydra: {run: {dir: x}}", "not a workload description"),
        ("w.yaml", b"workload: unet3d_h100", "only names the workload"),
        ("w.yaml", b"workload: {}\nreader: {}", "beside workload"),
    ],
)
def test_what_is_not_a_description_is_refused(tmp_path, monkeypatch, name, text, said):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(UsageError) as caught:
        read_workload(name)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_workloads_are_followed_whole(name):
    found = read_workload(name)
    said = {"model.model_size", "reader.sample_shuffle"}
    if found.workload.framework == "tensorflow":
        said.add("workflow.checkpoint")  # TensorFlow's checkpoints are approximate
    assert {note.key for note in found.notes} <= said
    assert found.workload.source.name == name
    assert data_set_files(found.workload).train.total_bytes >= 0


@pytest.mark.parametrize("name", [name for name in shipped_names() if name.startswith("paper_")])
def test_each_value_of_the_paper_says_where_it_is_from(name):
    for line in (SHIPPED / f"{name}.yaml").read_text().splitlines():
        if re.match(r"\s*\w+: \S", line) and not line.lstrip().startswith(("#", "workflow:")):
            assert re.search(r"# (printed|derived|chosen)", line), line


NAMES = sorted({*KEYS, *NOT_FOLLOWED, *SPELLINGS, "reader.x", "train.computation_time_stdev"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 9)
    | st.integers(0, 1 << 62)
    | st.floats()
    | st.sampled_from(["off", "seed", "npz", "hdf5", "pytorch", "tensorflow", "normal", "gzip", "default"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "mean", "stdev", "scale"]) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
SECTIONS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8)


def nested(keys):
    sections = {}
    for name, value in keys.items():
        *outer, last = name.split(".")
        inner = sections
        for part in outer:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                return sections
        inner[last] = value
    return sections


@given(SECTIONS, st.sampled_from(READINGS))
def test_any_values_end_in_a_workload_or_an_error(keys, reading):
    with suppress(UsageError):
        data_set_files(workload_from_values(nested(keys), reading=reading)[0])


@given(SECTIONS | VALUES | st.dictionaries(st.text(max_size=8), VALUES), st.sampled_from(READINGS))
@settings(max_examples=examples(50))
def test_any_yaml_ends_in_a_workload_or_an_error(tmp_path_factory, document, reading):
    path = tmp_path_factory.mktemp("fuzz") / "w.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), errors="ignore")
    ends_well(path, [], reading)


@given(st.binary(max_size=200) | st.text("{}[]:,-&*!|>'\"#%@` \n\tab0.~?<=", max_size=60).map(str.encode))
def test_any_bytes_end_in_a_workload_or_an_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "w.yaml"
    path.write_bytes(data)
    ends_well(path, [], "documented")


@given(st.sampled_from(NAMES), st.text(max_size=20) | st.text("{}[]:,'\"\\ a0._-e", max_size=9))
def test_any_override_ends_in_a_workload_or_an_error(name, value):
    ends_well("default", [f"{name}={value}"], "documented")


def ends_well(source, overrides, reading):
    with suppress(UsageError):
        data_set_files(read_workload(source, overrides, reading).workload)
