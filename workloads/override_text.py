"""`KEY=VALUE` on the command line, in the part of Hydra's grammar that DLIO's users need.

Values: numbers, `true`, `false`, `null`, text with or without quotes, `[a,b]` and `{mean:1,stdev:0.1}`. A word that is
a boolean in YAML is text here: `off` is "off". Sweeps, functions and interpolations are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dxt_replay.traces.errors import UsageError

MAX_CHARACTERS = 10_000
MAX_DEPTH = 20

_KEY = re.compile(r"^(\+\+|\+|~)?([A-Za-z_][\w\-]*(?:[./@][A-Za-z_][\w\-]*)*)(=|$)")
_WHOLE = r"(?:0|[1-9](?:_?[0-9])*)"
_DIGITS = r"[0-9](?:_?[0-9])*"
_INT = re.compile(rf"^[+-]?{_WHOLE}$")
_FLOAT = re.compile(
    rf"^[+-]?(?:(?:{_WHOLE}\.(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?[0-9]+)?|{_WHOLE}[eE][+-]?[0-9]+|inf|nan)$",
    re.IGNORECASE,
)
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
_ENDS = ",[]{}"
_ESCAPED = set("\\()[]{}:=, \t")
"""Characters that belong to an unquoted word if a backslash precedes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One `KEY=VALUE`. `path`: the key's parts without `workload`; `deleted`: `~KEY`, back to the default."""

    path: tuple[str, ...]
    value: Any
    deleted: bool = False


def read_override(text: str) -> Override:
    """Parse `text`. Raises: UsageError for what is not KEY=VALUE."""
    match = _KEY.match(text) if len(text) <= MAX_CHARACTERS else None
    deleted = match is not None and match[1] == "~"
    if match is None or (not match[3] and not deleted):
        raise UsageError(
            f"{_short(text)} is not KEY=VALUE: write SECTION.KEY=VALUE, such as reader.batch_size=4 or "
            "'train.computation_time={mean:0.5,stdev:0.1}'"
        )
    path = tuple(part for part in re.split(r"[./]", match[2]) if part)
    path = path[1:] if path[0] == "workload" and len(path) > 1 else path
    return Override(path=path, value=None if deleted else _Value(text, match.end()).whole(), deleted=deleted)


def override_text(key: str, value: Any) -> str:
    """`KEY=VALUE` that parses to `value`: null, a boolean, a number, text, or lists and maps of them."""
    return f"{key}={_value_text(value)}"


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ",".join(f"{_value_text(name)}:{_value_text(each)}" for name, each in value.items())
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_value_text, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


class _Value:
    """A recursive-descent reader of one value, which begins at `position` of `text`."""

    def __init__(self, text: str, position: int) -> None:
        self._text, self._at = text, position

    def whole(self) -> Any:
        """The value, which must reach to the end of the text."""
        self._skip()
        if self._at == len(self._text):
            return ""
        value = self._value(0)
        self._skip()
        if self._at < len(self._text):
            if self._text[self._at] == ",":
                raise self._error("several values (a sweep) are not read: give one; a list is [a,b]")
            raise self._error("is not understood: quote the value")
        return value

    def _error(self, why: str) -> UsageError:
        rest = _short(self._text[self._at :])
        return UsageError(f"{_short(self._text)}: from column {self._at + 1} on, {rest} {why}")

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1

    def _next_is(self, character: str) -> bool:
        self._skip()
        found = self._text.startswith(character, self._at)
        self._at += found
        return found

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self._error(f"has more than {MAX_DEPTH} levels")
        self._skip()
        if self._next_is("["):
            return self._list(depth)
        if self._next_is("{"):
            return self._map(depth)
        if self._text[self._at : self._at + 1] in ("'", '"'):
            return self._quoted()
        return self._word(_ENDS if depth else ",")

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        while not self._next_is("]"):
            if values and not self._next_is(","):
                raise self._error("should be a comma or ]")
            values.append(self._value(depth + 1))
        return values

    def _map(self, depth: int) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        while not self._next_is("}"):
            if values and not self._next_is(","):
                raise self._error("should be a comma or }")
            self._skip()
            quoted = self._text[self._at : self._at + 1] in ("'", '"')
            key = self._quoted() if quoted else self._word(f"{_ENDS}:")
            if key in values or not self._next_is(":"):
                raise self._error(f"is not a map: the key {key!r} needs one value, as in {{mean:1,stdev:0.1}}")
            values[key] = self._value(depth + 1)
        return values

    def _quoted(self) -> str:
        quote = self._text[self._at]
        letters: list[str] = []
        position = self._at + 1
        while position < len(self._text):
            letter = self._text[position]
            if letter == quote:
                self._at = position + 1
                return "".join(letters)
            position += letter == "\\" and self._text[position + 1 : position + 2] in (quote, "\\")
            letters.append(self._text[position])
            position += 1
        raise self._error("has no closing quote")

    def _word(self, ends: str) -> Any:
        letters: list[str] = []
        escaped = 0
        while self._at < len(self._text) and self._text[self._at] not in ends:
            if self._text[self._at] in "()" or self._text.startswith("${", self._at):
                raise self._error("would be a function or an interpolation, which are not read: give the value")
            if self._text[self._at] == "\\" and self._text[self._at + 1 : self._at + 2] in _ESCAPED:
                self._at += 1
                escaped = len(letters) + 1
            letters.append(self._text[self._at])
            self._at += 1
        word = "".join(letters[:escaped]) + "".join(letters[escaped:]).rstrip(" \t")
        if not word:
            raise self._error("should be a value")
        return word if escaped else _plain(word)


def _plain(word: str) -> Any:
    """An unquoted word as Hydra takes it: a boolean or null, a number, or text."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _INT.match(word) and len(word) <= 300:
        return int(word)
    return float(word) if _FLOAT.match(word) else word
