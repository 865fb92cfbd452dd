from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.workloads.fit.fitted import scalar, workload_text
from dxt_replay.workloads.source import read_yaml

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
    assert read_yaml(f"key: {scalar(value)}", "text") == {"key": value}


@given(VALUES, VALUES, VALUES, TEXT)
def test_a_description_reads_back_whatever_the_comments_hold(first, second, third, comment):
    keys = {"framework": first, "dataset.format": second, "dataset.hdf5.chunk_dims": third}
    text = workload_text({key: (value, comment) for key, value in keys.items()}, [comment, "", f"  {comment}"])
    assert yaml.safe_load(text) == {"framework": first, "dataset": {"format": second, "hdf5": {"chunk_dims": third}}}


def test_every_line_with_a_value_has_a_comment():
    text = workload_text({"train.epochs": (3, "3 passes")}, ["About it.", ""])
    assert text == "# About it.\n#\n\ntrain:\n  epochs: 3  # 3 passes\n"


def test_off_is_a_word_and_not_a_boolean():
    assert scalar("off") == "'off'"
