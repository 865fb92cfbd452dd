from __future__ import annotations

import json

import pytest

from dxt_replay.replay.commands.session import OUTPUT_SCHEMA_VERSION, print_json


def test_one_object_with_its_version_first_and_keys_as_given(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": 1, "a": {"path": "/é"}})
    text = capsys.readouterr().out
    assert list(json.loads(text)) == ["schema_version", "b", "a"]
    assert json.loads(text)["schema_version"] == OUTPUT_SCHEMA_VERSION
    assert text.isascii()


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        print_json({"a": float("nan")})
