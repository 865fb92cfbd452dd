"""YAML to values: OmegaConf's scalars, and one clear error for everything that is refused."""

from __future__ import annotations

import pytest

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.yaml_text import MAX_CHARACTERS, MAX_EVENTS, read_yaml


def test_scalars_are_read_as_dlio_reads_them():
    text = "a: 1e-3\nb: off\nc: 'off'\nd: 2024-01-01\ne: null\nf: 1_000\ng: .5\nh: [1, {x: 2}]\ni: 1.5e3\nj: 010"
    assert read_yaml(text, "w.yaml") == {
        "a": 0.001, "b": False, "c": "off", "d": "2024-01-01", "e": None, "f": 1000, "g": 0.5, "h": [1, {"x": 2}],
        "i": 1500.0, "j": 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2", "'a' is given twice"),
        ("a: !!python/object:os.system x", "tags"),
        ("a: !!set {x}", "tags"),
        ("[" * 30 + "]" * 30, "more than 20 levels"),
        ("x: {<<: {a: 1}}", "merge keys"),
        ("a: *nowhere", "undefined alias"),
        ("a: b: c", "line 1"),
        ("? [a]\n: b", "unhashable"),
        ("a: 0b_", "not YAML"),
        ("a: \0", "not YAML"),
        ("a: " + "9" * 5000, "not YAML"),
        ("- 1\n" * MAX_EVENTS, "values"),
        ("#" * (MAX_CHARACTERS + 1), "characters"),
        ("--- a\n--- b", "not YAML"),
    ],
)
def test_what_is_refused_is_named(text, said):
    with pytest.raises(UsageError, match=r"^w\.yaml") as caught:
        read_yaml(text, "w.yaml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_of_aliases_stays_small():
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join(['*' + before] * 9)}]")
    assert set(read_yaml("\n".join(lines), "w.yaml")) == set("abcdefghi")
