"""One option, and families of them: a family is a TypedDict whose keys carry an `Option`.

The keywords of a public function (`takes`), the options of a command (`replay.commands.family_options`) and
the reference of the site follow from it. Standard library only: a command's --help must not import what the command
needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from dxt_replay.traces.errors import UsageError

DURATION = "DURATION"
"""The metavar of seconds that the command line takes as text: 90, 10m, 2h."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Option:
    """One choice of a user.

    help: what it does, for --help and the reference of the site.
    default: value of a keyword that is not given.
    flags: spelling on the command line if it differs from the keyword; () for a keyword without an option.
    parameter: name in the environment (DXT_REPLAY_COMMAND_NAME) if it differs from the keyword. `no_` before the
        keyword makes a flag that switches off a default.
    metavar: placeholder of the value in --help. choices: the allowed values.
    least, most: limits of a number. inclusive: whether the limits themselves are allowed.
    place: kind that a path must have: file or directory. shown: whether --help shows the default.
    """

    help: str
    default: Any = None
    _: KW_ONLY
    flags: tuple[str, ...] | None = None
    parameter: str = ""
    metavar: str | None = None
    choices: tuple[str | int, ...] = ()
    least: int | None = None
    most: int | None = None
    inclusive: bool = True
    place: str = ""
    shown: bool = True


def maps_option(help: str, flag: str = "--map", default: Any = None) -> Option:
    """The option that leads recorded paths to real files, repeatable."""
    parameter = "" if flag == "--map" else flag[2:].replace("-", "_")
    return Option(f"{help}; repeatable.", default, flags=(flag,), parameter=parameter, metavar="PREFIX=DIR")


def kept_option(what: str) -> Option:
    """The option of a command that keeps its captures only on demand."""
    text = f"Keep {what} in DIR.  [default: deleted]"
    return Option(text, flags=("-o", "--output"), metavar="DIR", place="directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """An option of a family: its keyword, the annotation of its values, and its statement."""

    keyword: str
    annotation: Any
    option: Option

    @property
    def parameter(self) -> str:
        """See `Option`."""
        return self.option.parameter or self.keyword

    @property
    def is_negative(self) -> bool:
        """Whether the option switches off a default."""
        return self.parameter == f"no_{self.keyword}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Spellings on the command line; none for a keyword without an option."""
        own = self.option.flags
        return (f"--{self.parameter.replace('_', '-')}",) if own is None else own

    def check(self, value: Any) -> None:
        """Raises: UsageError for a value that is none of the choices, or beyond the limits."""
        option, name = self.option, (self.keyword, *self.flags)[-1]
        if value == option.default:
            return
        if option.choices and value not in option.choices:
            raise UsageError(f"{name} {str(value)!r}: choose {', '.join(map(str, option.choices))}")
        least, most = option.least, option.most
        if least is None:
            return
        if most is None:
            fits, allowed = value >= least, f"{least} or more"
        elif option.inclusive:
            fits, allowed = least <= value <= most, f"{least} to {most}"
        else:
            fits, allowed = least < value < most, f"a number between {least} and {most}"
        if not fits:
            raise UsageError(f"{name} {value:g}: give {allowed}")


def options_of(family: type[Any]) -> dict[str, Stated]:
    """The options of a family by keyword, in order."""
    found = {}
    for keyword, hint in get_type_hints(family, include_extras=True).items():
        annotation, option = get_args(hint)
        found[keyword] = Stated(keyword=keyword, annotation=annotation, option=option)
    return found


def filled(family: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with the defaults of what is missing. Raises: as `Stated.check`; TypeError for a keyword that the family
    does not have."""
    stated = options_of(family)
    unknown = given.keys() - stated.keys()
    if unknown:
        raise TypeError(f"there is no choice {min(unknown)!r}: {family.__name__} has {', '.join(stated)}")
    for keyword, value in given.items():
        stated[keyword].check(value)
    return {keyword: given.get(keyword, each.option.default) for keyword, each in stated.items()}


def takes(family: type[Any]) -> Callable[[Function], Function]:
    """For a function whose keywords are those of a family: its signature and documentation name each of them."""

    def decorate(function: Function) -> Function:
        signature, keywords = inspect.signature(function), []
        lines = [inspect.cleandoc(function.__doc__ or ""), ""]
        for each in options_of(family).values():
            kind, default = inspect.Parameter.KEYWORD_ONLY, each.option.default
            keywords.append(
                inspect.Parameter(each.keyword, kind, default=default, annotation=_name_of(each.annotation))
            )
            choices = f" One of {', '.join(map(str, each.option.choices))}." if each.option.choices else ""
            named = f"`{each.keyword}` False" if each.is_negative else f"`{each.keyword}`"
            lines.append(f"{named}: {each.option.help}{choices}")
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        function.__doc__ = "\n".join(lines)
        return function

    return decorate


def _name_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
