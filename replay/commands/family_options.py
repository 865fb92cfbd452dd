"""Makes options of a command from a family (`replay.options`), and keywords from the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.options.choices import PathLike, PathMaps, Reading
from dxt_replay.replay.options.option import DURATION, Option, Stated, options_of

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def family_options(family: type[Any], *keywords: str, **other: Option) -> Decorator:
    """The options `names` of a family, or all of them. `other`: options that this command states differently."""
    stated = options_of(family)
    chosen = [stated[keyword] for keyword in keywords or stated]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(chosen):
            option = other.get(each.keyword, each.option)
            if option.flags != ():
                command = _option(Stated(keyword=each.keyword, annotation=each.annotation, option=option))(command)
        return command

    return decorate


def as_keywords(family: type[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the parameters of a command to the keywords of its function. Parameters of no family keep their names."""
    found = dict(parameters)
    for each in options_of(family).values():
        if each.parameter in found:
            value = found.pop(each.parameter)
            found[each.keyword] = not value if each.is_negative else value
    return found


_PATH = click.Path(path_type=Path)
_PLACES = {
    "": _PATH,
    "file": click.Path(path_type=Path, dir_okay=False),
    "directory": click.Path(path_type=Path, file_okay=False),
}

_TYPES: Mapping[Any, tuple[Any, bool]] = {
    int: (int, False),
    float: (float, False),
    str: (str, False),
    int | str: (str, False),
    Sequence[int]: (str, False),
    PathLike: (_PATH, False),
    Sequence[str]: (str, True),
    PathMaps: (str, True),
    Sequence[PathLike]: (_PATH, True),
    PathLike | Sequence[PathLike]: (_PATH, True),
    Reading: (str, False),
}
"""Annotation of a keyword, None aside -> click's type, and whether the option may be repeated."""


def _option(each: Stated) -> Decorator:
    option, spelled = each.option, each.parameter.replace("_", "-")
    flags = option.flags or (f"--{spelled}",)
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if each.annotation is bool:
        if option.default and not each.is_negative:
            flags = option.flags or (f"--{spelled}/--no-{spelled}",)
            settings |= {"default": True, "show_default": True}
        return click.option(*flags, each.parameter, is_flag=True, **settings)
    settings["type"], settings["multiple"] = next(
        found for kind, found in _TYPES.items() if each.annotation in (kind, kind | None)
    )
    if option.choices:
        settings["type"] = click.Choice(option.choices)
    elif option.place:
        settings["type"] = _PLACES[option.place]
    elif (option.least, option.most) != (None, None):
        settings["type"] = click.IntRange(option.least, option.most)
    elif option.metavar == DURATION:
        settings |= {"type": str, "callback": _seconds}
    if option.default not in (None, ()):
        settings |= {"default": option.default, "show_default": option.shown}
    return click.option(*flags, each.parameter, **settings)


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A duration as seconds. Raises: UsageError."""
    if value is None:
        return None
    from dxt_replay.traces.units import NS_PER_S, parse_duration_ns

    return parse_duration_ns(value, option.opts[-1]) / NS_PER_S
