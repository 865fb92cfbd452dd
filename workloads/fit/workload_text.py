"""Writes the keys of a description as YAML, with the evidence of each as a comment behind it. Pure."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

WIDTH = 120
"""Columns of the comment at the top."""

Estimates = Mapping[str, tuple[Any, str]]
"""Key, such as `reader.batch_size` -> its value as YAML gives it, and how that was found; what is not known of the
value stands there too."""

Found = Iterator[tuple[str, tuple[Any, str]]]
"""The estimates of an estimator, one after the other."""

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")


def workload_text(estimates: Estimates, head: Iterable[str]) -> str:
    """The YAML text. `estimates`: those of a section in a row. `head`: paragraphs for the top, as comments."""
    lines = [
        f"# {line}".rstrip()
        for paragraph in head
        for line in textwrap.wrap(_one_line(paragraph), WIDTH - 2, break_on_hyphens=False) or [""]
    ]
    assigned = {key: f"{_indented(key)}: {scalar(value)}" for key, (value, _) in estimates.items()}
    width = max(map(len, assigned.values()))
    opened: list[str] = []
    for key, (_, found) in estimates.items():
        sections = key.split(".")[:-1]
        for depth in range(1, len(sections) + 1):
            if opened[:depth] != sections[:depth]:
                lines += [*([""] if depth == 1 else []), f"{_indented('.'.join(sections[:depth]))}:"]
        opened = sections
        lines.append(f"{assigned[key].ljust(width)}  # {_one_line(found)}")
    return "\n".join(lines) + "\n"


def _indented(key: str) -> str:
    *sections, name = key.split(".")
    return "  " * len(sections) + name


def scalar(value: Any) -> str:
    """A value as one line of YAML. Text that YAML or OmegaConf could take for something else is quoted."""
    style = '"' if isinstance(value, str) and not _PLAIN.fullmatch(value) else None
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=math.inf, sort_keys=False)
    return text.removesuffix("...\n").rstrip("\n")


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
