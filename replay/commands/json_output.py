"""Prints JSON on standard output; nothing else does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

OUTPUT_SCHEMA_VERSION = 1
"""Version of the objects that `--json` prints. History: 1 (0.1.0): first."""


_PLACE = "\x00rows"
"""Stands for streamed rows until they are printed: no text of a result begins with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedRows:
    """A list of an object for `print_json` that is too large to be in memory. `members`: the text of its members with
    each line behind the indentation given, in pieces."""

    members: Callable[[str], Iterable[str]]


def print_json(result: Mapping[str, Any]) -> None:
    """Print one object, `schema_version` first, keys as given, on one indented page of ASCII. A list that is
    `StreamedRows` is in memory a piece at a time.

    Raises: ValueError for nan and infinity, which JSON does not have: the object must hold None instead.
    """
    streamed: list[StreamedRows] = []

    def place(value: Any) -> str:
        if not isinstance(value, StreamedRows):
            raise TypeError(f"{type(value).__name__} cannot be written as JSON")
        streamed.append(value)
        return _PLACE

    text = json.dumps({"schema_version": OUTPUT_SCHEMA_VERSION, **result}, indent=2, allow_nan=False, default=place)
    before, *others = text.split(json.dumps(_PLACE)) if streamed else [text]
    for rows, after in zip(streamed, others, strict=True):
        _print_rows(before, rows)
        before = after
    click.echo(before)


def _print_rows(before: str, rows: StreamedRows) -> None:
    """Print `before`, the text up to the list, and the list."""
    click.echo(before, nl=False)
    line = before[before.rfind("\n") + 1 :]
    indent = " " * (len(line) - len(line.lstrip(" ")))
    empty = True
    for piece in rows.members(f"{indent}  "):
        click.echo(f"[\n{piece}" if empty else piece, nl=False)
        empty = False
    click.echo("[]" if empty else f"\n{indent}]", nl=False)
