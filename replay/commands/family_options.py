"""Makes options of a command from a family (`replay.options`), and the keywords of its function from the options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.options.choices import PathLike, PathMaps, Reading, RunPair
from dxt_replay.replay.options.option import DURATION, Option, Stated, options_of
from dxt_replay.traces.errors import UsageError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What makes options of a command."""


def family_options(family: type[Any], *keywords: str, **other: Option) -> Decorator:
    """The options `keywords` of a family, or all of them; the command gets them by keyword.

    `other`: options that this command states differently.
    """
    stated = options_of(family)
    chosen = [
        Stated(keyword=each.keyword, annotation=each.annotation, option=other.get(each.keyword, each.option))
        for each in map(stated.__getitem__, keywords or stated)
    ]
    options = [each for each in chosen if each.option.flags != ()]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def by_keyword(**given: Any) -> Any:
            named = {each.keyword: _value(each, given.pop(each.parameter)) for each in options}
            return command(**given, **named)

        decorated: Callable[..., Any] = by_keyword
        for each in reversed(options):
            decorated = _option(each)(decorated)
        return decorated

    return decorate


def _value(each: Stated, given: Any) -> Any:
    """The value of a keyword from the parameter of a command."""
    return not given if each.is_negative else given


_PATH = click.Path(path_type=Path)
_PLACES = {
    "": _PATH,
    "file": click.Path(path_type=Path, dir_okay=False),
    "directory": click.Path(path_type=Path, file_okay=False),
}

_TYPES: Mapping[Any, dict[str, Any]] = {
    int: {"type": int},
    float: {"type": float},
    str: {"type": str},
    int | str: {"type": str},
    str | Path: {"type": str},
    Sequence[int]: {"type": str},
    PathLike: {"type": _PATH},
    Sequence[str]: {"type": str, "multiple": True},
    PathMaps: {"type": str, "multiple": True},
    Sequence[PathLike]: {"type": _PATH, "multiple": True},
    PathLike | Sequence[PathLike]: {"type": _PATH, "multiple": True},
    Sequence[RunPair]: {"type": _PATH, "multiple": True, "nargs": 2},
    Reading: {"type": str},
}
"""Annotation of a keyword, None aside -> settings of its option."""


class OneOf(click.Choice[Any]):
    """A choice that passes another value on: the function of the command says what is wrong with it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The choice, or `value` if it is none."""
        with suppress(click.BadParameter):
            return super().convert(value, param, ctx)
        return value


class _Integer(click.IntRange):
    """A number whose limits --help shows, and `Stated.check` checks."""

    convert = click.types.IntParamType.convert


class _Number(click.FloatRange):
    convert = click.types.FloatParamType.convert


def _option(each: Stated) -> Decorator:
    option, flags = each.option, each.flags
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if each.annotation is bool:
        if option.default and not each.is_negative and option.flags is None:
            flags = (f"{flags[0]}/--no-{flags[0][2:]}",)
        if option.default and not each.is_negative:
            settings |= {"default": True, "show_default": True}
        return click.option(*flags, each.parameter, is_flag=True, **settings)
    settings |= next(found for kind, found in _TYPES.items() if each.annotation in (kind, kind | None))
    if option.choices:
        settings["type"] = OneOf(option.choices)
    elif option.place:
        settings["type"] = _PLACES[option.place]
    elif option.least is not None:
        kind = _Integer if settings["type"] is int else _Number
        settings["type"] = kind(option.least, option.most, not option.inclusive, not option.inclusive)
    if option.metavar == DURATION:
        settings |= {"type": str, "callback": _seconds}
    else:
        settings["callback"] = functools.partial(_checked, each)
    if option.default not in (None, ()):
        settings |= {"default": option.default, "show_default": option.shown}
    return click.option(*flags, each.parameter, **settings)


def _checked(each: Stated, context: click.Context, option: click.Parameter, value: Any) -> Any:
    """The value. Raises: click.UsageError with the words of the function's own error for the same value."""
    try:
        each.check(value)
    except UsageError as error:
        raise click.UsageError(str(error), context) from error
    return value


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A duration as seconds. Raises: UsageError."""
    if value is None:
        return None
    from dxt_replay.traces.units import NS_PER_S, parse_duration_ns

    return parse_duration_ns(value, option.opts[-1]) / NS_PER_S
