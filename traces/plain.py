"""Typed results as plain JSON values: the objects of `--json` are made from results here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import PurePath
from typing import Any


def plain(value: Any) -> Any:
    """Plain JSON types, new ones at every depth.

    A dataclass becomes an object with its fields in their order, a tuple a list, a path or a mapping's key text, an
    enum its value, a time ISO 8601, and a NumPy scalar or array numbers.
    """
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    return value.tolist() if hasattr(value, "dtype") else value
