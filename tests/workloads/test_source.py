"""Descriptions by file and by name, as DLIO reads them with OmegaConf and Hydra; any text ends in a workload or in one
clear error."""

from __future__ import annotations

import hashlib
import json
import math
import re
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.files import data_set_files
from dxt_replay.workloads.source import (
    MAX_CHARACTERS,
    SHIPPED,
    overridden,
    override_text,
    read_override,
    read_workload,
    read_yaml,
    resolved,
    shipped_names,
)
from dxt_replay.workloads.values import KEYS, NOT_FOLLOWED, SPELLINGS, workload_from_values
from tests.examples import examples


@pytest.fixture
def path(tmp_path):
    """Of a description."""
    return tmp_path / "w.yaml"


TEXT = "framework: pytorch\ndataset: {format: npz}\nreader: {data_loader: pytorch, batch_size: 3}\n"


def test_a_file_is_read_with_its_digest_and_overrides(path):
    path.write_text(TEXT)
    workload = read_workload(path, ["++workload.reader.batch_size=5", "train.epochs=2"]).workload
    assert (workload.reader.batch_size, workload.train.epochs) == (5, 2)
    assert workload.source.name == str(path)
    assert workload.source.sha256 == hashlib.sha256(TEXT.encode()).hexdigest()
    assert workload.source.overrides == ("++workload.reader.batch_size=5", "train.epochs=2")


@pytest.mark.parametrize(
    "override",
    [
        *(f"{before}storage.storage_options{of}" for before in ("", "++workload.") for of in (".k=hush", "={k:hush}")),
        "storage={storage_options:{k:hush}}",
    ],
)
def test_access_keys_are_not_kept(path, override):
    path.write_text(TEXT + "storage: {storage_options: {access_key_id: hush}}\n")
    found = read_workload(path, [override])
    assert "hush" not in repr(found)
    assert "storage.storage_options" in {note.key for note in found.notes}


ALIASES = b"a: &a [x,x,x,x,x,x,x,x,x]\n"
ALIASES += b"\n".join(b"%c: &%c [%s]" % (to, to, b",".join([b"*%c" % (to - 1)] * 9)) for to in b"bcdefgh")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("unet3", None, "did you mean unet3d_"), ("nothing_like_it", None, "--list"), (".", None, "folder without"),
        ("w.yaml", b"\xff\xfe\x00", "cannot be read as text"), ("w.yaml", b"", "not a workload description"),
        ("w.yaml", ALIASES, "values with its aliases written out"),
        ("w.yaml", b"a: &a [*a]", "not YAML that can be read"), ("w.yaml", b"- a", "not a workload description"),
        ("w.yaml", b"hydra: {run: {dir: x}}", "not a workload description"),
        ("w.yaml", b"workload: unet3d_h100", "only names the workload"),
        ("w.yaml", b"workload: {}\nreader: {}", "beside workload"),
    ],
)  # fmt: skip
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
    said = {"dataset.record_length_bytes_resize", "reader.read_threads"}
    if found.workload.framework == "tensorflow":
        said.add("workflow.checkpoint")  # TensorFlow's checkpoints are approximate
    assert {note.key for note in found.notes} <= said
    assert found.workload.source.name == name
    assert data_set_files(found.workload)[0].total_bytes >= 0


@pytest.mark.parametrize("name", [name for name in shipped_names() if name.startswith("paper_")])
def test_each_value_of_the_paper_says_where_it_is_from(name):
    for line in (SHIPPED / f"{name}.yaml").read_text().splitlines():
        if re.match(r"\s*\w+: \S", line) and not line.lstrip().startswith(("#", "workflow:")):
            assert re.search(r"# (printed|derived|chosen)", line), line


NAMES = sorted({*KEYS, *NOT_FOLLOWED, *SPELLINGS, "reader.x", "train.computation_time_stdev"})
WORDS = st.sampled_from(["off", "seed", "npz", "hdf5", "pytorch", "tensorflow", "normal", "gzip", "default"])
PARTS = st.sampled_from(["type", "mean", "stdev", "scale"]) | st.integers()
SCALARS = (st.none(), st.booleans(), st.integers(), st.integers(0, 9), st.integers(0, 1 << 62), st.floats(), WORDS)
VALUES = st.recursive(
    st.one_of(*SCALARS, st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PARTS, inner, max_size=3),
    max_leaves=6,
)
SECTIONS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8)


@given(SECTIONS)
def test_any_values_end_in_a_workload_or_an_error(keys):
    values = {}
    for name, value in keys.items():
        values = overridden(values, name.split("."), value)
    with suppress(UsageError):
        data_set_files(workload_from_values(values)[0])


DOCUMENTS = SECTIONS | VALUES | st.dictionaries(st.text(max_size=8), VALUES)
BYTES = st.binary(max_size=200) | st.text("{}[]:,-&*!|>'\"#%@` \n\tab0.~?<=", max_size=60).map(str.encode)


@given(DOCUMENTS.map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode(errors="ignore")) | BYTES)
@settings(max_examples=examples(100))
def test_any_text_ends_in_a_workload_or_an_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "w.yaml"
    path.write_bytes(data)
    with suppress(UsageError):
        data_set_files(read_workload(path).workload)


@given(st.sampled_from(NAMES), st.text(max_size=20) | st.text("{}[]:,'\"\\ a0._-e", max_size=9))
def test_any_override_ends_in_a_workload_or_an_error(name, value):
    with suppress(UsageError):
        data_set_files(read_workload("default", [f"{name}={value}"]).workload)


def test_scalars_are_read_as_dlio_reads_them():
    text = "a: 1e-3\nb: off\nc: 'off'\nd: 2024-01-01\ne: null\nf: 1_000\ng: .5\nh: [1, {x: 2}]\ni: 1.5e3\nj: 010"
    assert read_yaml(text, "w.yaml") == {
        "a": 0.001, "b": False, "c": "off", "d": "2024-01-01", "e": None, "f": 1000, "g": 0.5, "h": [1, {"x": 2}],
        "i": 1500.0, "j": 8,
    }  # fmt: skip


V05 = """
workload:
  model: unet3d
  framework: pytorch
  workflow: {generate_data: false, train: true, checkpoint: true, profiling: false}
  dataset: {data_folder: /mnt/store/client1, format: npz, num_files_train: 25000, num_samples_per_file: 1,
    record_length: 146600628, record_length_stdev: 68341808, num_subfolders_train: 20}
  reader: {data_loader: pytorch, batch_size: 4, read_threads: 4, file_shuffle: seed, sample_shuffle: seed,
    shuffle_size: 4}
  train: {seed_change_epoch: false, epochs: 5, computation_time: 1.3604}
  checkpoint: {checkpoint_folder: /mnt/store/client1, checkpoint_after_epoch: 5, epochs_between_checkpoints: 2,
    model_size: 499153191}
  profiling: {profiler: none}
"""

V05_BERT = """
workload:
  model: bert
  framework: tensorflow
  workflow: {generate_data: false, train: true, debug: false, checkpoint: true, profiling: false}
  dataset: {data_folder: /lustre/client/datagen_bert, format: tfrecord, num_files_train: 239,
    num_samples_per_file: 313532, record_length: 2500, file_prefix: part}
  train: {seed_change_epoch: false, computation_time: 0.968, total_training_steps: 1000}
  reader: {data_loader: tensorflow, read_threads: 4, computation_threads: 8, transfer_size: 262144, batch_size: 48,
    file_shuffle: seed, sample_shuffle: seed}
  checkpoint: {checkpoint_folder: /lustre/client/checkpoint_bert, steps_between_checkpoints: 250,
    model_size: 4034713312}
  storage: {storage_type: local_fs, storage_root: /lustre/client}
  profiling: {profiler: none}
"""
"""MLPerf Storage v0.5 has two workloads; these are as its submissions resolved them, with other folders."""


CASES = json.loads((Path(__file__).parents[2] / "benchmarks" / "mlperf" / "cases.json").read_text(encoding="utf-8"))
V1 = yaml.safe_dump({"workload": CASES["micron9550_unet3d_a100_n8"]["config"]})
REFERENCES = """
workload:
  model: {name: llama3_8b, type: transformer, num_layers: 32, parallelism: {tensor: 1, pipeline: 1, zero_stage: 3}}
  framework: pytorch
  workflow: {generate_data: false, train: false, checkpoint: true}
  checkpoint: {checkpoint_folder: '/mnt/${workload.model.name}', num_checkpoints_write: 10,
    num_checkpoints_read: '${.num_checkpoints_write}', time_between_checkpoints: 5, fsync: true, mode: default}
  output: {folder: '${hydra:run.dir}'}
hydra:\n  run: {dir: './results/${workload.model}/${now:%Y-%m-%d}'}
"""


@pytest.mark.parametrize(
    ("text", "folder", "name", "record", "model"),
    [
        (V05, ".hydra", "unet3d", 146600628, 499153191),
        (V05_BERT, "configs", "bert", 2500, 4034713312),
        (V1, "dlio_config", "unet3d", 146600628, 499153191),
        (REFERENCES, "", "llama3_8b", 65536, 10240),
        *((yaml.safe_dump({"workload": case["config"]}), "", None, None, None) for case in CASES.values()),
    ],
)
def test_resolved_configurations_of_mlperf_are_read(tmp_path, text, folder, name, record, model):
    """The folder of a run is enough; sizes stand under the names that DLIO read until its version 1."""
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "config.yaml").write_text(text)
    workload, notes = (found := read_workload(tmp_path)).workload, found.notes
    assert not [note for note in notes if note.kind == "unknown" and note.key != "workflow.debug"]
    shown = (workload.model.name, workload.dataset.record_length_bytes, workload.model.model_size_bytes)
    assert name is None or shown == (name, record, model)


def test_a_run_that_made_its_data_set_is_refused_though_it_has_a_rule_for_checkpoints(path):
    """As the file-creation runs of v0.5: checkpoints are on, but follow steps of a training that is off."""
    path.write_text(V05_BERT.replace("generate_data: false, train: true", "generate_data: true, train: false"))
    with pytest.raises(UsageError, match=r"only writes its data set: .* made by dxt-replay stage"):
        read_workload(path)


def test_references_stand_for_what_omegaconf_gives():
    """The values are those of OmegaConf.to_container(c["workload"], resolve=True)."""
    text = """
      model: {name: unet3d, big: true}
      dataset: {files: 16, eval: '${.files}', folder: 'data/${workload.model.name}/${..model.big}', l: [3, 4]}
      reader: {batch_size: '${workload.dataset.l[1]}', read_threads: '${workload.dataset.l.0}', x: '${..model}'}
    """
    assert resolved(yaml.safe_load(text)) == {
        "model": {"name": "unet3d", "big": True},
        "dataset": {"files": 16, "eval": 16, "folder": "data/unet3d/True", "l": [3, 4]},
        "reader": {"batch_size": 4, "read_threads": 3, "x": {"name": "unet3d", "big": True}},
    }


@pytest.mark.parametrize(
    "value",
    ["${oc.env:FILES}", "${hydra:job.num}", "${dataset.no_such_key}", "${.num_files_eval}", "${.....x}", "${a.${b}}"],
)
def test_what_the_file_does_not_hold_is_an_error_where_it_changes_the_run(path, value):
    path.write_text(f"dataset: {{format: npz, num_files_eval: '{value}'}}\nreader: {{data_loader: tensorflow}}\n")
    with pytest.raises(UsageError, match=r"dataset.num_files_eval: .* refers to what this file does not hold"):
        read_workload(path)
    path.write_text(f"dataset: {{format: npz}}\noutput: {{folder: '{value}'}}\nprofiling: {{profiler: '{value}'}}\n")
    assert {note.kind for note in read_workload(path).notes} == {"not I/O"}


@pytest.mark.parametrize("of", [lambda one: one + one, lambda one: {"a": one, "b": one}])
def test_references_that_double_are_bounded(of):
    levels = {f"k{level}": of(f"${{dataset.k{level + 1}}}") for level in range(40)}
    with pytest.raises(UsageError, match="more than 10000 values"):
        resolved({"dataset": {**levels, "k40": "x"}})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-4", -4), ("1_000", 1000), (".5", 0.5), ("1e-3", 0.001), ("1.", 1.0), ("inf", math.inf), ("007", "007"),
        ("true", True), ("False", False), ("NULL", None), ("off", "off"), ("", ""), ("two words", "two words"),
        ("s3://a:b=c", "s3://a:b=c"), ("'a, b'", "a, b"), ('"4"', "4"), ("[]", []),
        ("[1,2.5, x ,[3]]", [1, 2.5, "x", [3]]), ("{}", {}), ("{mean:1,stdev:0.1}", {"mean": 1, "stdev": 0.1}),
        ("{'a b':[1]}", {"a b": [1]}), ("{type: gamma, shape: 2, scale: 1}", {"type": "gamma", "shape": 2, "scale": 1}),
    ],
)  # fmt: skip
def test_values_of_the_command_line_are_hydra_s(text, value):
    assert read_override(f"a.b={text}") == (["a", "b"], value)
    assert read_override(f"++workload.a.b={text}")[0] == ["a", "b"]
    assert value == math.inf or read_override(override_text("a.b", value)) == (["a", "b"], value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reader.batch_size", "is not KEY=VALUE"), ("=4", "is not KEY=VALUE"), ("a..b=4", "is not KEY=VALUE"),
        ("a.b=1,2", "sweep"), ("a.b=choice(1,2)", "functions"), ("a.b=${x}", "references"), ("a.b=[1", "line 1"),
        ("a.b={x:1,x:2}", "given twice"), ("a.b='x", "end of stream"), ("a.b=" + "[" * 1000, "recursion depth"),
        ("a.b=" + "x" * 20_000, "is not KEY=VALUE"),
    ],
)  # fmt: skip
def test_what_is_no_key_and_value_is_named(text, said):
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        read_override(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2", "'a' is given twice"), ("a: !!python/object:os.system x", "constructor"),
        ("[" * 1000 + "]" * 1000, "recursion depth"), ("x: {<<: {a: 1}}", "merge keys"),
        ("a: *nowhere", "undefined alias"), ("a: b: c", "line 1"), ("a: 0b_", "not YAML"), ("a: \0", "not YAML"),
        ("a: " + "9" * 5000, "not YAML"), ("#" * (MAX_CHARACTERS + 1), "characters"), ("--- a\n--- b", "not YAML"),
    ],
)  # fmt: skip
def test_yaml_that_is_refused_is_named(text, said):
    with pytest.raises(UsageError, match=r"^w\.yaml") as caught:
        read_yaml(text, "w.yaml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_are_merged_and_deleted_before_references_are_followed(path):
    path.write_text(TEXT + "train: {computation_time: {mean: 1, stdev: 0.5}, epochs: '${reader.batch_size}'}\n")
    train = read_workload(path, ["train.computation_time={mean:2}", "reader.batch_size=7"]).workload.train
    assert (train.computation_time.parameters, train.epochs) == ((2.0, 0.5), 7)
    assert read_workload(path, ["~train.computation_time"]).workload.train.computation_time.mean_s == 0


@pytest.mark.parametrize("spelled", ["model.model_size_bytes", "model.model_size", "checkpoint.model_size"])
def test_an_override_takes_the_place_of_another_spelling_in_the_file(spelled):
    """unet3d_h100 has model.model_size."""
    assert read_workload("unet3d_h100", [f"{spelled}=1000"]).workload.model.model_size_bytes == 1000
