from __future__ import annotations

import json

import pytest

from dxt_replay.replay.commands.session import OUTPUT_SCHEMA_VERSION, StreamedRows, print_json


def test_one_object_with_its_version_first_and_keys_as_given(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": 1, "a": {"path": "/é"}})
    text = capsys.readouterr().out
    assert list(json.loads(text)) == ["schema_version", "b", "a"]
    assert json.loads(text)["schema_version"] == OUTPUT_SCHEMA_VERSION
    assert text.isascii()


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        print_json({"a": float("nan")})


def test_streamed_rows_are_printed_as_the_list_is(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": 1}, {"a": 2}]

    def members(indent: str) -> list[str]:
        return [
            f'{comma}{indent}{{\n{indent}  "a": {row["a"]}\n{indent}}}'
            for comma, row in zip(("", ",\n"), rows, strict=True)
        ]

    def document(many: object, none: object) -> dict[str, object]:
        return {"tables": {"many": many, "plain": ["\\u0000rows"], "none": none}, "after": 3}

    print_json(document(rows, []))
    expected = capsys.readouterr().out
    print_json(document(StreamedRows(members=members), StreamedRows(members=lambda indent: [])))
    assert capsys.readouterr().out == expected


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        print_json({"a": object()})
