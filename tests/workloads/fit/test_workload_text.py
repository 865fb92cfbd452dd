from __future__ import annotations

import dataclasses

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.workloads.fit.estimate import Estimate
from dxt_replay.workloads.fit.workload_text import scalar, workload_text
from dxt_replay.workloads.workload_source import SHIPPED, read_workload, shipped_names
from dxt_replay.workloads.yaml_text import read_yaml

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30)
NUMBERS = st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.booleans() | NUMBERS | TEXT
VALUES = (
    SCALARS
    | st.lists(st.integers(0, 10**12), max_size=4)
    | st.dictionaries(st.sampled_from("abc"), NUMBERS, max_size=3)
)


@given(VALUES)
def test_a_value_reads_back(value):
    assert yaml.safe_load(f"key: {scalar(value)}") == {"key": value}


@given(VALUES, VALUES, VALUES, TEXT)
def test_a_description_reads_back_whatever_the_comments_hold(first, second, third, comment):
    keys = {"framework": first, "dataset.format": second, "dataset.hdf5.chunk_dims": third}
    estimates = [Estimate(key=key, value=value, found=comment, error=comment) for key, value in keys.items()]
    text = workload_text(estimates, [comment, "", f"  {comment}"])
    assert yaml.safe_load(text) == {"framework": first, "dataset": {"format": second, "hdf5": {"chunk_dims": third}}}


def test_every_line_with_a_value_has_a_comment():
    text = workload_text([Estimate(key="train.epochs", value=3, found="3 passes", error="+1 %")], ["About it."])
    assert text == "# About it.\n\ntrain:\n  epochs: 3  # 3 passes; +1 %\n"


def test_off_is_a_word_and_not_a_boolean():
    assert scalar("off") == '"off"'


@pytest.mark.parametrize("name", shipped_names())
def test_a_workload_reads_back_equal(tmp_path, name):
    given = read_yaml((SHIPPED / f"{name}.yaml").read_text(), name)
    estimates = [Estimate(key=key, value=value, found="given") for key, value in flat(given)]
    place = tmp_path / "again.yaml"
    place.write_text(workload_text(sorted(estimates, key=lambda each: each.key), ["Again."]))
    one, other = read_workload(name).workload, read_workload(place).workload
    assert dataclasses.replace(other, source=one.source) == one


def flat(values, prefix=""):
    for key, value in values.items():
        name = f"{prefix}{key}"
        is_section = isinstance(value, dict) and not name.endswith(("_time", "_time_stdev"))
        if is_section:
            yield from flat(value, f"{name}.")
        elif value is not None:
            yield name, value
