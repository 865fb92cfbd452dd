"""Replaces references of a description to its own keys, such as `${dataset.num_files_train}`, by their values. Pure.

The rules are those of OmegaConf, which DLIO uses: names are absolute, or relative with leading dots (`${.key}` is a
neighbour), and a value that is one reference has the type of its target. The name `workload` of the description itself
may lead. References to the run (`${hydra:...}`, `${oc.env:...}`, `${now:...}`) stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dxt_replay.traces.errors import UsageError

MARK = "${"
"""Begin of a reference in a text."""

MAX_VALUES = 10_000
"""Most values after the references of a description are replaced: references to references double with each."""

_REFERENCE = re.compile(r"(?<!\\)\$\{\s*(\.*)([\w-]+(?:\.[\w-]+|\[\w+\])*)\s*\}")
_MAX_DEPTH = 30

Path = tuple[str, ...]


def resolved(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """`values` with each reference to one of its keys replaced. A reference to a missing key, or to itself, stays.

    Raises: UsageError for references that expand to more than MAX_VALUES values.
    """
    resolver = _Resolver(values)
    return {key: resolver.value(value, (str(key),), 0) for key, value in values.items()}


class _Resolver:
    def __init__(self, values: Mapping[Any, Any]) -> None:
        self._values, self._left = values, MAX_VALUES

    def value(self, value: Any, path: Path, depth: int) -> Any:
        """The value at `path`, with its references replaced."""
        if isinstance(value, Mapping):
            return {key: self.value(inner, (*path, str(key)), depth) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner, (*path, str(number)), depth) for number, inner in enumerate(value)]
        if not isinstance(value, str) or MARK not in value or depth > _MAX_DEPTH:
            return value
        self._left -= 1 + len(value) // 100
        if self._left < 0:
            raise UsageError(f"the references (${{...}}) of the description come to more than {MAX_VALUES} values")
        whole = _REFERENCE.fullmatch(value)
        if whole:
            return self._referent(whole, path, depth)
        return _REFERENCE.sub(lambda match: str(self._referent(match, path, depth)), value)

    def _referent(self, match: re.Match[str], path: Path, depth: int) -> Any:
        """The value to which a reference at `path` refers; its own text if there is none."""
        dots, name = match.groups()
        if len(dots) > len(path):
            return match[0]
        target = (*(path[: len(path) - len(dots)] if dots else ()), *re.findall(r"[\w-]+", name))
        if not dots and target[0] == "workload" and "workload" not in self._values:
            target = target[1:]
        found: Any = self._values
        for part in target:
            found = _inside(found, part)
        if found is None or path[: len(target)] == target:
            return match[0]
        return self.value(found, target, depth + 1)


def _inside(container: Any, part: str) -> Any:
    """The value of a key, or of an index in a list; None if there is none."""
    if isinstance(container, Mapping):
        return next((value for key, value in container.items() if str(key) == part), None)
    if isinstance(container, Sequence) and not isinstance(container, str) and part.isdecimal():
        return container[int(part)] if len(part) < 9 and int(part) < len(container) else None
    return None
