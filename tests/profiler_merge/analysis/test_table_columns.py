from __future__ import annotations

import dataclasses

from dxt_replay.profiler_merge.analysis.named_tables import VIEWS
from dxt_replay.profiler_merge.analysis.summary import Summary
from dxt_replay.profiler_merge.analysis.table_columns import JSON_KEYS, MEANINGS, TABLES, tables_page, unit_of
from tests.places import ROOT


def test_every_column_of_every_table_is_explained() -> None:
    assert [name for name in TABLES if "--by" not in name] == list(VIEWS)
    columns = {column for schema, _ in TABLES.values() for column in schema.names}
    assert columns == set(MEANINGS)
    assert "-1" in MEANINGS["rank"]


def test_times_are_nanoseconds_in_every_table_but_for_what_is_at_stake() -> None:
    columns = {column for schema, _ in TABLES.values() for column in schema.names}
    assert {column for column in columns if unit_of(column) == "s"} == {"at_stake_s"}
    assert (unit_of("bytes_read"), unit_of("read_mib_s"), unit_of("io_busy_share")) == ("bytes", "MiB/s", "0 to 1")
    assert unit_of("reads") == ""


def test_every_key_of_the_summary_is_explained() -> None:
    assert set(JSON_KEYS) == {*(field.name for field in dataclasses.fields(Summary)), "storage_limit"}


def test_the_page_is_in_step() -> None:
    """What follows are the keys of the other commands: `tests/docs/test_json_keys.py`."""
    assert (ROOT / "docs" / "tables.md").read_text(encoding="utf-8").startswith(tables_page())
