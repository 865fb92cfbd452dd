"""`KEY=VALUE` in Hydra's grammar: what Hydra 1.3 makes of the same text."""

from __future__ import annotations

import math

import pytest

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.override_text import read_override


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-4", -4),
        ("1_000", 1000),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("1.", 1.0),
        ("inf", math.inf),
        ("true", True),
        ("False", False),
        ("NULL", None),
        ("off", "off"),
        ("", ""),
        ("/data/unet3d", "/data/unet3d"),
        ("s3://a:b=c", "s3://a:b=c"),
        ("'a, b'", "a, b"),
        ("'it\\'s'", "it's"),
        ('"4"', "4"),
        ("two words", "two words"),
        ("007", "007"),
        ("01.", "01."),
        ("a\\,b\\ ", "a,b "),
        ("[a\\,b,C:\\x]", ["a,b", "C:\\x"]),
        ("[]", []),
        ("[1,2.5, x ,[3]]", [1, 2.5, "x", [3]]),
        ("{}", {}),
        ("{mean:1,stdev:0.1}", {"mean": 1, "stdev": 0.1}),
        ("{type: gamma, shape: 2, scale: 1}", {"type": "gamma", "shape": 2, "scale": 1}),
        ("{'a b':[1]}", {"a b": [1]}),
    ],
)
def test_values(text, value):
    assert read_override(f"a.b={text}").value == value


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("reader.batch_size=1", ("reader", "batch_size")),
        ("++workload.reader.batch_size=1", ("reader", "batch_size")),
        ("+workload.dataset.hdf5.chunk_dims=1", ("dataset", "hdf5", "chunk_dims")),
        ("framework=pytorch", ("framework",)),
        ("hydra.run.dir=out", ("hydra", "run", "dir")),
    ],
)
def test_keys(text, path):
    assert read_override(text).path == path


def test_a_key_can_be_deleted():
    override = read_override("~reader.read_type")
    assert (override.path, override.deleted) == (("reader", "read_type"), True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reader.batch_size", "is not KEY=VALUE"),
        ("=4", "is not KEY=VALUE"),
        ("a b=4", "is not KEY=VALUE"),
        ("a..b=4", "is not KEY=VALUE"),
        ("a.b=1,2", "sweep"),
        ("a.b=choice(1,2)", "function"),
        ("a.b=${x}", "interpolation"),
        ("a.b=[1", "comma or ]"),
        ("a.b={mean}", "needs one value"),
        ("a.b={x:1,x:2}", "needs one value"),
        ("a.b='x", "closing quote"),
        ("a.b='x' y", "not understood"),
        ("a.b=" + "[" * 50, "levels"),
        ("a.b=" + "x" * 20_000, "is not KEY=VALUE"),
    ],
)
def test_what_is_refused_is_named(text, said):
    with pytest.raises(UsageError) as caught:
        read_override(text)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400
