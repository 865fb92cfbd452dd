"""JSON on standard output: the one place that prints it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

OUTPUT_SCHEMA_VERSION = 1
"""Of the objects that `--json` prints. History: 1 (0.1.0): first."""


def print_json(result: Mapping[str, Any]) -> None:
    """Print one object, `schema_version` first, keys as given, on one indented page of ASCII.

    Raises: ValueError for nan and infinity, which are no JSON: whoever makes the object says None.
    """
    click.echo(json.dumps({"schema_version": OUTPUT_SCHEMA_VERSION, **result}, indent=2, allow_nan=False))
