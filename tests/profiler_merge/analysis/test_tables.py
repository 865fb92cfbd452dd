from __future__ import annotations

import dataclasses

import pyarrow as pa

from dxt_replay.profiler_merge.analysis.summary import Summary
from dxt_replay.profiler_merge.analysis.tables import COLUMNS, GROUPS, TABLES
from dxt_replay.traces.text import unit_of
from tests.schemas import schema


def test_every_column_is_of_a_table_and_explained() -> None:
    assert {column for table in (*TABLES.values(), GROUPS) for column in table.columns} == set(COLUMNS)
    assert all(column.meaning for column in COLUMNS.values())
    assert "-1" in COLUMNS["rank"].meaning


def test_a_column_has_one_type_but_for_texts_in_place_of_numbers() -> None:
    assert TABLES["findings"].schema.field("files").type == pa.string()
    assert TABLES["ranks"].schema.field("files").type == pa.int64()


def test_times_are_nanoseconds_in_every_table_but_for_what_is_at_stake() -> None:
    assert {column for column in COLUMNS if unit_of(column) == "s"} == {"at_stake_s"}
    assert (unit_of("bytes_read"), unit_of("read_mib_s"), unit_of("io_busy_share")) == ("bytes", "MiB/s", "0 to 1")
    assert unit_of("reads") == ""


def test_every_key_of_the_summary_is_explained() -> None:
    keys = schema("summary")["properties"].items()
    explained = {key for key, about in keys if "description" in about} - {"tables", "overlap", "unread"}
    fields = {field.name for field in dataclasses.fields(Summary)} - {"generated"}
    assert explained == fields | {"storage_limit", "model"}
