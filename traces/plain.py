"""Typed results as plain JSON values, from which the objects of `--json` are made, and how a notebook shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from importlib import import_module
from pathlib import PurePath
from typing import Any


class Result:
    """A result that people look at: its `repr` is its first line, and a notebook adds a small table.

    Its words are those of its command, in `replay.show`, which is imported when somebody looks.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]  # a dataclass keeps one that it finds

    def __repr__(self) -> str:
        line: str = import_module("dxt_replay.replay.show.notebook").line(self)
        return line

    def _repr_html_(self) -> str:
        html: str = import_module("dxt_replay.replay.show.notebook").html(self)
        return html


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
