"""Holds what commands print to src/dxt_replay/schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.places import PACKAGE

FOLDER = PACKAGE / "schemas"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def schema(name: str) -> dict[str, Any]:
    """The schema of that name, as it is shipped."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return document


def check(name: str, printed: Mapping[str, Any]) -> None:
    """Fail unless an object meets its schema and has no other keys; `printed`: with or without `schema_version`."""
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(closed(schema(name)))
    errors = validator.iter_errors({"schema_version": 1, **json.loads(json.dumps(printed))})
    found = [f"{error.json_path}: {error.message[:200]}" for error in errors]
    assert not found, "\n".join([name, *found])


def closed(document: Any) -> Any:
    """A schema whose objects may have no keys besides those it names. The shipped ones allow keys of later releases."""
    if isinstance(document, list):
        return [closed(each) for each in document]
    if not isinstance(document, dict):
        return document
    made = {key: closed(each) for key, each in document.items()}
    if isinstance(document.get("required"), list) and "properties" in document:
        made.setdefault("additionalProperties", False)
    return made
