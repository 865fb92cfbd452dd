"""What a person reads about storage's part in a training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dxt_replay.replay.show.limit_sections import enough_texts, limit_sections
from dxt_replay.replay.show.page.chart_data import storage_figure
from dxt_replay.replay.show.summary_sections import limit_text
from dxt_replay.traces.storage_limit import LimitPoint, NoStorageLimitError, StorageLimit

LIMIT = StorageLimit(
    recorded_ns=4_000_000_000,
    model_ns=4_000_000_000,
    fastest_ns=3_000_000_000,
    utilisation_pct=60.0,
    fastest_utilisation_pct=80.0,
    points=tuple(
        LimitPoint(
            quantity=quantity, multiple=multiple, elapsed_ns=elapsed_ns, above_fastest_pct=0.0, utilisation_pct=1.0
        )
        for quantity in ("speed", "bandwidth")
        for multiple, elapsed_ns in ((0.5, 8_000_000_000), (1.0, 4_000_000_000), (None, 3_000_000_000))
    ),
    enough={"speed": 12.5},
)


def test_the_sentence_has_both_times_and_both_utilisations() -> None:
    assert limit_text(LIMIT) == (
        "Storage limits this training by 25.0 %: with infinitely fast storage it would take 3.000 s instead of "
        "4.000 s, and compute 80.0 % of the loop instead of 60.0 %."
    )
    assert limit_text(replace(LIMIT, utilisation_pct=None)).endswith("instead of 4.000 s.")
    assert limit_text(replace(LIMIT, fastest_ns=LIMIT.model_ns)).startswith("Storage does not limit this training: ")


@pytest.mark.parametrize(
    ("multiple", "expected"), [(None, "Even at 64"), (0.25, "At a quarter"), (3.84, "From 3.8 times")]
)
def test_what_is_enough_is_a_sentence(multiple: float | None, expected: str) -> None:
    (text,) = enough_texts({"speed": multiple})
    assert text.startswith(expected)


def test_each_quantity_is_a_table() -> None:
    head, speed, bandwidth, note = limit_sections(LIMIT)
    assert head.rows[1] == ("From 12 times the recorded speed on, storage costs at most 2 %.",)
    assert [row[0] for row in speed.rows] == ["0.5 x", "1 x", "infinite"]
    assert bandwidth.title.startswith("Training time by bandwidth")
    assert note.rows


def test_a_reason_stands_in_place_of_the_tables() -> None:
    (section,) = limit_sections(NoStorageLimitError("too large"))
    assert section.rows == (("How long this training takes on other storage is not known: too large.",),)


def test_the_figure_has_a_line_a_quantity_and_the_fastest() -> None:
    lines = {trace["name"]: trace for trace in storage_figure(LIMIT)["data"]}
    assert list(lines) == ["all of storage", "bandwidth alone", "infinitely fast"]
    assert (lines["all of storage"]["x"], lines["all of storage"]["y"]) == ([0.5, 1.0], [8.0, 4.0])
    assert lines["infinitely fast"]["y"] == [3.0, 3.0]
