"""Reads YAML into plain values, with limits: any text ends in values or in one UsageError.

Scalars are read as OmegaConf reads them, which DLIO uses: as YAML 1.1 (`off` is a boolean), but `1e-3` is a number and
`2024-01-01` is text. Tags, merge keys (`<<`) and duplicate keys are errors.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from dxt_replay.traces.errors import UsageError

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 20
MAX_EVENTS = 100_000

_OPENING = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"
_FLOAT_TAG = "tag:yaml.org,2002:float"
_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
     |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
     |\.[0-9_]+(?:[eE][-+][0-9]+)?
     |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.X,
)


class _Loader(yaml.SafeLoader):
    """The safe loader with OmegaConf's scalars, without merge keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of `node`. Raises: yaml.YAMLError for a duplicate key."""
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            names = [self.construct_object(key, deep=True) for key, _value in node.value]
            twice = next(name for position, name in enumerate(names) if name in names[:position])
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} is given twice", node.start_mark)
        return mapping

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse merge keys, whose expansion is not bounded. Raises: yaml.YAMLError."""
        for key, _value in node.value:
            if key.tag == _MERGE_TAG:
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys (<<) are not read: write the keys out", key.start_mark
                )


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TIMESTAMP_TAG, _FLOAT_TAG)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))


def read_yaml(text: str, name: str) -> Any:
    """The value of the one YAML document in `text`; errors contain `name`. An alias shares its target's value.

    Raises: UsageError for text that is not YAML, is too large or too deep, or has tags, merge or duplicate keys.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{name} has {len(text)} characters; a workload description has at most {MAX_CHARACTERS}")
    try:
        _check_events(text, name)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not YAML that can be read: {_place(error)}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{name} is not YAML that can be read: {str(error).splitlines()[0]}") from error


def _check_events(text: str, name: str) -> None:
    """Raises: UsageError for a document that is too deep or too long, or has a tag; yaml.YAMLError."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, yaml.SafeLoader)):
        depth += isinstance(event, _OPENING) - isinstance(event, _CLOSING)
        if depth > MAX_DEPTH or count > MAX_EVENTS:
            limit = f"more than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {MAX_EVENTS} values"
            raise UsageError(f"{name} is not a workload description: it has {limit}")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise UsageError(f"{name}: tags ({tag}) are not read: give the value without one")


def _place(error: yaml.YAMLError) -> str:
    """The problem and its line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    return str(problem) if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
