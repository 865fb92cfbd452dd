"""Writes a fitted description as YAML. A comment on every line says how the value was found, and its error. Pure."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dxt_replay.workloads.fit.estimate import Estimate

WIDTH = 120
"""Columns of the comment at the top."""

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_RESERVED = frozenset({"off", "on", "yes", "no", "true", "false", "null", "none", "y", "n"})


def workload_text(estimates: Sequence[Estimate], head: Iterable[str]) -> str:
    """The YAML text. `head`: paragraphs for the top, as comments. Estimates of one section are kept together."""
    lines = [line for paragraph in head for line in _commented(paragraph)]
    width = max(len(_assignment(each)) for each in estimates)
    opened: list[str] = []
    for estimate in estimates:
        *sections, _ = estimate.key.split(".")
        common = 0
        while common < min(len(opened), len(sections)) and opened[common] == sections[common]:
            common += 1
        for depth in range(common, len(sections)):
            lines += [*([""] if depth == 0 else []), f"{'  ' * depth}{sections[depth]}:"]
        opened = sections
        lines.append(f"{_assignment(estimate).ljust(width)}  # {_one_line(estimate.comment)}")
    return "\n".join(lines) + "\n"


def _assignment(estimate: Estimate) -> str:
    *sections, name = estimate.key.split(".")
    return f"{'  ' * len(sections)}{name}: {scalar(estimate.value)}"


def scalar(value: Any) -> str:
    """A value as one line of YAML. Text that YAML would take for something else is quoted."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {scalar(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value)


def _number(value: float) -> str:
    """A float that YAML 1.1 reads as one: with a point before an exponent, and the exponent's sign."""
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    if exponent and "." not in mantissa:
        return f"{mantissa}.0e{power}"
    return text


def _commented(paragraph: str) -> list[str]:
    """A paragraph as comment lines. An indented one is a table line and is kept unchanged."""
    if not paragraph:
        return ["#"]
    if paragraph.startswith("  "):
        return [f"# {_one_line(paragraph)}"]
    return [f"# {line}" for line in textwrap.wrap(_one_line(paragraph), WIDTH - 2, break_on_hyphens=False)]


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
