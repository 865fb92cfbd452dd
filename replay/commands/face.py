"""The face of the product: one typed signature is the public function, its checks and documentation, and the command.

A parameter annotated with an `Option` (or an `Argument`) is an option of the command of that name, with its help, its
variable in the environment (DXT_REPLAY_COMMAND_NAME) and its limits. Other parameters are for callers in Python alone.
The help of a command is the docstring up to "In Python:". Imports only click, so that `--help` is fast.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import click

from dxt_replay.replay.commands import session
from dxt_replay.traces.errors import UsageError

PathLike = str | os.PathLike[str]

PathMaps = Mapping[str, PathLike] | Sequence[str]
"""Places of real data by recorded prefix: `{"/data/train": "/mnt/copy"}`, or `["/data/train=/mnt/copy"]`."""

PATH = click.Path(path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Option:
    """One choice of a user.

    help: what it does, for --help and the documentation.
    metavar: placeholder of the value.
    flags: spellings on the command line if they differ from the keyword; "" for a choice of Python alone.
    name: in the environment if it differs from the keyword. `no_` before the keyword makes a flag that switches off.
    choices: the allowed values. least, most: limits of a number, themselves allowed
    if `inclusive`. text: a path that may be a URL. pair: each value is two words. parse: makes the value of the text on
    the command line, and of the flag for its errors.
    """

    help: str
    metavar: str | None = None
    _: KW_ONLY
    flags: str | None = None
    name: str = ""
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    inclusive: bool = True
    text: bool = False
    pair: bool = False
    parse: Callable[[str, str], Any] | None = None

    def check(self, keyword: str, value: Any, default: Any) -> None:
        """Raises: UsageError for a value that is none of the choices, or beyond the limits."""
        if value is default or value == default:
            return
        own = f"--{(self.name or keyword).replace('_', '-')}" if self.flags is None else self.flags
        flag = (own or keyword).split()[-1]
        if self.choices and value not in self.choices:
            raise UsageError(f"{flag} {str(value)!r}: choose {', '.join(self.choices)}")
        if self.least is None:
            return
        least, most = self.least, float("inf") if self.most is None else self.most
        if not (least <= value <= most if self.inclusive else least < value < most):
            between = f"{least} to {most}" if self.inclusive else f"a number between {least} and {most}"
            raise UsageError(f"{flag} {value:g}: give {f'{least} or more' if self.most is None else between}")


@dataclass(frozen=True, slots=True)
class Argument:
    """A word of the command line without a flag. text: as of `Option`."""

    metavar: str
    text: bool = False


Force = Annotated[bool, Option("Replace an earlier output.")]
Target = Annotated[PathLike, Option("Directory, or s3:// URL, of the staged twin.", "DIR", text=True)]
Maps = Annotated[PathMaps | None, Option("Files below PREFIX are in DIR; repeatable.", "PREFIX=DIR", flags="--map")]
PART_HELP = "Only a part, such as steps=10-19,op=read; also ranks, from, until, path, exclude, api; repeatable."


def _seconds(text: str, flag: str) -> float:
    from dxt_replay.traces.units import NS_PER_S, parse_duration_ns

    return parse_duration_ns(text, flag) / NS_PER_S


Timeout = Annotated[
    float | None, Option("Stop after 90, 10m or 2h; print what hangs.", "DURATION", flags="--timeout", parse=_seconds)
]


def output(metavar: str, help: str) -> Option:
    """The option -o."""
    return Option(help, metavar, flags="-o --output")


# ----------------------------------------------------------------------------------- from a signature
@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A parameter that the command line has. kinds: its types, those of members of sequences too."""

    keyword: str
    about: Option | Argument
    kinds: tuple[Any, ...]
    default: Any
    many: bool

    @property
    def name(self) -> str:
        """As click knows it."""
        return (isinstance(self.about, Option) and self.about.name) or self.keyword

    @property
    def is_negative(self) -> bool:
        """Whether the flag switches off a default."""
        return self.name == f"no_{self.keyword}"

    def of(self, word: Any) -> Any:
        """The value of the keyword from that of the command line."""
        if word is None and self.default is not inspect.Parameter.empty:
            return self.default
        return not word if self.is_negative else word


class _Names(dict[str, Any]):
    """Names of an annotation; what only a type checker imports is anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


@functools.cache
def stated(function: Callable[..., Any]) -> Mapping[str, Stated]:
    """The parameters of a function that are options or arguments, by keyword."""
    function, found = inspect.unwrap(function), {}

    def members(kind: Any) -> list[Any]:
        return [*get_args(kind)] if get_origin(kind) in (Union, UnionType) else [kind]

    for keyword, parameter in inspect.signature(function).parameters.items():
        hint: Any = parameter.annotation
        if isinstance(hint, str):
            hint = eval(hint, {}, _Names(vars(sys.modules[function.__module__])))
        if get_origin(hint) is not Annotated:
            continue
        kind, about = get_args(hint)
        kinds = members(kind)
        rows = [each for each in kinds if isinstance(row := get_origin(each), type) and issubclass(row, Sequence)]
        many = bool(rows) and getattr(about, "parse", None) is None
        found[keyword] = Stated(
            keyword=keyword,
            about=about,
            kinds=(*kinds, *(member for row in rows for member in members(get_args(row)[0]))),
            default=parameter.default,
            many=many or parameter.kind is parameter.VAR_POSITIONAL,
        )
    return found


def check_choices(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises: UsageError for values that the options of the function do not allow."""
    options = stated(function)
    for keyword, value in given.items():
        each = options.get(keyword)
        if each and isinstance(each.about, Option) and (value is not None or type(None) not in each.kinds):
            each.about.check(keyword, value, each.default)


def public(function: F) -> F:
    """Check the choices of a caller before a function begins, and add each option to its documentation.

    Raises: UsageError, with the words of the command line.
    """
    signature, options = inspect.signature(function), stated(function)

    @functools.wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        check_choices(function, signature.bind(*given, **named).arguments)
        return function(*given, **named)

    lines = [inspect.cleandoc(function.__doc__ or ""), ""]
    for each in options.values():
        if isinstance(about := each.about, Option):
            choices = f" One of {', '.join(about.choices)}." if about.choices else ""
            lines.append(f"`{each.keyword}`{' False' * each.is_negative}: {about.help}{choices}")
    checked.__doc__ = "\n".join(lines)
    return checked  # type: ignore[return-value]


FACES: dict[str, Callable[[], click.Command]] = {}
"""Name -> makes the command; a module adds its commands when it is imported."""


def command(
    *,
    name: str = "",
    like: Callable[..., Any] | None = None,
    following: Callable[..., Sequence[PathLike]] = lambda result, given: (),
    fails: Callable[..., bool] = lambda result, given: not getattr(result, "passed", True),
    tidy: bool = False,
    cls: type[click.Command] | None = None,
    **settings: Any,
) -> Callable[[F], F]:
    """Make a command of a function, which stays an ordinary one of the public interface.

    It returns the answer to print, or the exit status where it has printed for itself. following: the words of the next
    command. fails: whether the exit status is 1. Both get the result and the values by keyword. like: a function whose
    options the command has too, and gets by keyword. tidy: whether SIGTERM and SIGHUP leave no temporary files.
    A parameter `executor` makes --workers and --dask; one named `comm` a command of all processes of mpiexec.
    """

    def decorate(function: F) -> F:
        made = public(function)
        mine = name or function.__name__

        def make() -> click.Command:
            signature = inspect.signature(function).parameters
            own = stated(function)
            first = {key: each for key, each in own.items() if isinstance(each.about, Argument)}
            options = {**first, **(stated(like) if like else {}), **own}
            shares = "executor" in signature

            def invoke(**words: Any) -> int:
                count, cluster = words.pop("workers", None) if shares else None, words.pop("dask", None)
                given = {key: each.of(words[each.name]) for key, each in options.items() if each.name in words}
                with ExitStack() as stack:
                    if tidy:
                        from dxt_replay.replay.ranks.stopping import unwind_on_signals

                        stack.enter_context(unwind_on_signals())
                    if shares:
                        workers = stack.enter_context(session.workers(count, cluster))
                        if workers is None:
                            return 0
                        given["executor"] = workers
                    if "comm" in signature:
                        from dxt_replay.replay.ranks.mpi import connect

                        comm = given["comm"] = connect()
                        stack.enter_context(session.ending_together(comm))
                        stack.enter_context(comm.watched())
                    many = next((key for key, each in signature.items() if each.kind is each.VAR_POSITIONAL), "")
                    result = made(*given.get(many, ()), **{key: given[key] for key in given if key != many})
                if "comm" in given and given["comm"].rank:  # the first process prints, after MPI has ended
                    return 0
                if isinstance(result, int):
                    return result
                session.answer(result, *following(result, given))
                return int(fails(result, given))

            text = inspect.cleandoc(inspect.unwrap(like if like and not function.__doc__ else function).__doc__ or "")
            text = text.partition("\n\nIn Python:")[0]
            parameters = [each for stated in options.values() if (each := _parameter(stated)) is not None]
            if shares:
                texts = ("Processes that share the work.", "Dask scheduler whose workers share it.")
                parameters.append(click.Option(["--workers"], type=int, metavar="N", help=texts[0]))
                parameters.append(click.Option(["--dask"], metavar="ADDRESS", help=texts[1]))
            parameters += session.common_options(hidden=True)
            epilog = "Every command also takes --json, --details, -q, -v and -h."
            return (cls or Command)(mine, params=parameters, callback=invoke, help=text, epilog=epilog, **settings)

        FACES[mine] = make
        return made

    return decorate


class Command(click.Command):
    """A command whose help names the options of every command in one line."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """-h, which the last line names."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.hidden = True
        return option


class OneOf(click.Choice[Any]):
    """A choice that passes another value on: `Option.check` says what is wrong with it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The choice, or `value` if it is none."""
        with suppress(click.BadParameter):
            return super().convert(value, param, ctx)
        return value


def _parameter(each: Stated) -> click.Parameter | None:
    """The parameter of a command; None for a choice of Python alone."""
    about, required = each.about, each.default is inspect.Parameter.empty and type(None) not in each.kinds
    kind: Any = str if about.text else PATH if os.PathLike[str] in each.kinds else str
    if isinstance(about, Argument):
        nargs = -1 if each.many else 1
        metavar = about.metavar if required or about.metavar.startswith("[") else f"[{about.metavar}]"
        return click.Argument([each.keyword], type=kind, nargs=nargs, required=required, metavar=metavar)
    if about.flags == "":
        return None
    flags = (about.flags or f"--{each.name.replace('_', '-')}").split()
    if bool in each.kinds:
        on = each.default is True and not each.is_negative
        if on and about.flags is None:
            flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
        return click.Option([*flags, each.name], is_flag=True, default=on, show_default=on, help=about.help)
    if about.choices:
        kind = OneOf(about.choices)
    elif about.parse is None and kind is str and not about.text:
        kind = int if int in each.kinds and str not in each.kinds else float if float in each.kinds else str
    more: dict[str, Any] = {}
    if each.default not in (None, (), inspect.Parameter.empty):
        more = {"default": each.default, "show_default": True}
    return click.Option(
        [*flags, each.name],
        type=kind,
        multiple=each.many,
        required=required,
        nargs=2 if about.pair else 1,
        metavar=about.metavar,
        help=about.help,
        callback=functools.partial(_checked, each),
        **more,
    )


def _checked(each: Stated, context: click.Context, option: click.Parameter, value: Any) -> Any:
    """The value. Raises: click.UsageError with the words of the function's own error for the same value."""
    assert isinstance(each.about, Option)
    if value is None:
        return None
    try:
        if each.about.parse is not None and isinstance(value, str):
            value = each.about.parse(value, option.opts[-1])
        if not each.many:
            each.about.check(each.keyword, value, each.default)
    except UsageError as error:
        raise click.UsageError(str(error), context) from error
    return value
