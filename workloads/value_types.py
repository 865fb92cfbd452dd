"""The types of a description's values: each converts a value from YAML, or says what it wants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, get_origin

from dxt_replay.workloads.times import FAMILY_PARAMETERS, NO_TIME, Distribution, Family

MOST = 1 << 62
"""Largest whole number: byte offsets and products of a few counts stay below 64 bits."""

MAX_LIST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """The values that a key takes. `wanted` completes "... is not" in an error; `convert` raises ValueError for
    others."""

    wanted: str
    convert: Callable[[Any], Any]


def whole(least: int = 0, most: int = MOST) -> ValueType:
    """An int from `least` to `most`; 4.0 counts as 4, a boolean does not count."""
    bounds = f"of {least} or more" if most == MOST else f"from {least} to {most}"
    return ValueType(wanted=f"a whole number {bounds}", convert=lambda value: _whole(value, least, most))


def optional_whole(least: int = 1) -> ValueType:
    """None for null or -1, else an int of `least` or more."""

    def convert(value: Any) -> int | None:
        return None if value is None or value == -1 else _whole(value, least, MOST)

    return ValueType(wanted=f"a whole number of {least} or more, or -1 for none", convert=convert)


def number(least: float = 0.0, most: float = float(MOST)) -> ValueType:
    """A finite int or float from `least` to `most`."""
    bounds = f"of {least:g} or more" if most == MOST else f"from {least:g} to {most:g}"
    return ValueType(wanted=f"a number {bounds}", convert=lambda value: _number(value, least, most))


def _whole(value: Any, least: int, most: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError
    return value


def _number(value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


FLAG = ValueType(wanted="True or False", convert=_flag)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError
    text = str(value)
    if "\0" in text or len(text.encode()) > 4000:  # a lone surrogate is a ValueError too
        raise ValueError
    return text


TEXT = ValueType(wanted="text", convert=_text)

OPTIONAL_TEXT = ValueType(wanted=TEXT.wanted, convert=lambda value: None if value is None else _text(value))


def _name_part(value: Any) -> str:
    text = _text(value)
    if "/" in text or len(text.encode()) > 200:
        raise ValueError
    return text


NAME_PART = ValueType(wanted="part of a file's name: text of 200 bytes at most, without /", convert=_name_part)


def choice(words: Sequence[str], *, false_is: str | None = None) -> ValueType:
    """One of some words; `false_is`: the word for which False stands, since YAML reads some unquoted words as
    booleans."""

    def convert(value: Any) -> str:
        value = false_is if value is False else value
        if not isinstance(value, str) or value not in words:
            raise ValueError
        return value

    return ValueType(wanted=f"one of {', '.join(words)}", convert=convert)


SHUFFLE = choice(("off", "seed", "random"), false_is="off")
"""Orders of files and samples. An unquoted `off` is False in YAML."""


def wholes(least: int = 1) -> ValueType:
    """A tuple from a list of whole numbers of at least `least`; null is an empty one."""

    def convert(value: Any) -> tuple[int, ...]:
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or len(value) > MAX_LIST:
            raise ValueError
        numbers = tuple(_whole(each, least, MOST) for each in value)
        if math.prod(numbers) > MOST and least > 0:
            raise ValueError
        return numbers

    wanted = f"a list of whole numbers of {least} or more, such as [4, 2]"
    return ValueType(wanted=wanted, convert=convert)


_FAMILIES = ", ".join(
    f"{{type: {family}, {', '.join(names)}}}" for family, names in FAMILY_PARAMETERS.items() if family != "constant"
)

_MOST_S = 1e9
"""Longest time in seconds, 30 years: its nanoseconds fit 64 bits."""


def _times(value: Any) -> Distribution:
    if value is None:
        return NO_TIME
    if not isinstance(value, dict):
        return Distribution(family="constant", parameters=(_number(value, -_MOST_S, _MOST_S),))
    given = dict(value)
    if not given:
        return NO_TIME
    family = given.pop("type", "normal" if "stdev" in given else "constant")
    if not isinstance(family, str) or family not in FAMILY_PARAMETERS:
        raise ValueError
    family = cast(Family, family)
    names = FAMILY_PARAMETERS[family]
    if set(given) != set(names):
        raise ValueError
    numbers = tuple(float(_number(given[name], -_MOST_S, _MOST_S)) for name in names)
    if any(each < 0 for name, each in zip(names, numbers, strict=True) if name in ("stdev", "shape", "scale", "lam")):
        raise ValueError
    if family == "uniform" and numbers[0] > numbers[1]:
        raise ValueError
    return Distribution(family=family, parameters=numbers)


TIMES = ValueType(wanted=f"a number of seconds, {{mean}}, {{mean, stdev}} or one of {_FAMILIES}", convert=_times)


def value_type(annotation: Any, least: int | None, most: int | None) -> ValueType:
    """The value type of a field's annotation, with its bounds if there are any."""
    literals = [each for each in (annotation, *get_args(annotation)) if get_origin(each) is Literal]
    bounds = {name: value for name, value in (("least", least), ("most", most)) if value is not None}
    if literals:
        return choice(get_args(literals[0]))
    if annotation in _NUMBERS:
        return _NUMBERS[annotation](**bounds)
    return _OTHERS[annotation]


_NUMBERS: Mapping[Any, Callable[..., ValueType]] = {
    int: whole,
    float: number,
    int | None: optional_whole,
    tuple[int, ...]: wholes,
}
_OTHERS: Mapping[Any, ValueType] = {bool: FLAG, str: TEXT, str | None: OPTIONAL_TEXT, Distribution: TIMES}
