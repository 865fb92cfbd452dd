"""The cosine of the DLIO paper: its printed rows, its weakness, and what is left out of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.compare.similarity import similarity
from tests.places import SHARED

AMOUNTS = st.floats(1e-9, 1e12)


def pair(difference: float) -> tuple[float, float]:
    """The factors (source, replay) behind a printed difference: the larger is 1."""
    return (1.0, 1.0 - difference) if difference >= 0 else (1.0 + difference, 1.0)


def similarity_of(pairs: list[tuple[float, float]]) -> float | None:
    names = [f"factor {place}" for place in range(len(pairs))]
    source, replay = zip(*pairs, strict=True)
    return similarity(dict(zip(names, source, strict=True)), dict(zip(names, replay, strict=True))).cosine


def printed_rows() -> dict[str, dict]:
    file = SHARED / "theta" / "fig8_check.json"
    return json.loads(file.read_text()) if file.is_file() else {}


@pytest.mark.skipif(not printed_rows(), reason="the paper's printed rows are not on this machine")
def test_the_printed_rows_of_the_paper() -> None:
    for application, row in printed_rows().items():
        pairs = [pair(difference) for difference in row["diff"].values()]
        for hidden, expected in ((0, "cos_8_printed_columns"), (1, "cos_8_plus_1"), (2, "cos_8_plus_2_equal_hidden")):
            assert similarity_of([*pairs, *[(1.0, 1.0)] * hidden]) == pytest.approx(row[expected], abs=5.1e-5), (
                application
            )


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ((0.18, 0.07, -0.01, -0.01, 0.0, 0.0, -0.65, -0.53), 0.950),
        ((-0.05, 0.0, 0.15, 0.13, -0.38, 0.31, 0.32, 0.42), 0.964),
        ((-0.1, -0.34, 0.37, 0.27, 0.0, 0.71, 0.0, 0.26), 0.937),
    ],
    ids=["Imagenet", "Cosmic Tagger", "CosmoFlow"],
)
def test_three_applications_of_the_paper(differences: tuple[float, ...], expected: float) -> None:
    assert similarity_of([pair(difference) for difference in differences]) == pytest.approx(expected, abs=5e-4)


@given(st.lists(AMOUNTS, min_size=1, max_size=10), st.floats(0.01, 100))
def test_the_weakness_that_is_printed_with_it(amounts: list[float], ratio: float) -> None:
    assert similarity_of([(amount, amount * ratio) for amount in amounts]) == pytest.approx(1)


@pytest.mark.parametrize("ratio", [0.8, 0.7, 0.5])
def test_half_up_and_half_down(ratio: float) -> None:
    assert similarity_of([(1, ratio)] * 4 + [(ratio, 1)] * 4) == pytest.approx(2 * ratio / (1 + ratio**2))


def test_factors_that_are_0_on_both_sides_are_skipped() -> None:
    found = similarity({"a": 2, "b": 0}, {"a": 1, "b": 0})
    assert found.cosine == pytest.approx(1)
    assert (found.factors["a"].difference, found.factors["b"].difference) == (0.5, None)


def test_nothing_against_nothing_and_against_something() -> None:
    assert similarity({"a": 0}, {"a": 0}).cosine is None
    assert similarity({"a": 0}, {"a": 3}).cosine == 0


def test_faster_storage_changes_the_cosine_and_not_that_of_the_workload() -> None:
    source = {"io_time_s": 10.0, "bytes": 5.0, "files": 2.0, "bandwidth_median": 1.0, "bandwidth_mean": 1.0}
    replay = {**source, "io_time_s": 1.0, "bandwidth_median": 10.0, "bandwidth_mean": 10.0}
    compared = similarity(source, replay)
    assert compared.cosine is not None
    assert compared.cosine < 0.9
    assert compared.workload_cosine == pytest.approx(1.0)
    assert similarity(source, {**replay, "bytes": 1.0}).workload_cosine == pytest.approx(0.8321, abs=1e-4)
