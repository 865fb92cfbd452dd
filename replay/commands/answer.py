"""Prints the answer of a command: its result as JSON or as tables, and the command that usually comes next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from dxt_replay.replay.commands.session import current

if TYPE_CHECKING:
    from dxt_replay.replay.show.section import Section


class Result(Protocol):
    """What a function of the public interface returns."""

    def as_json(self) -> Mapping[str, Any]:
        """The object that --json prints."""


R = TypeVar("R", bound=Result | Mapping[str, Any])


def answer(result: R, sections: Callable[[R], Sequence[Section]], *following: str | os.PathLike[str]) -> None:
    """Print a result, or a JSON object: as JSON under --json, else as tables and the next command.

    `sections` makes the tables of the result. `following`: the words of the next command, as for `print_next`.
    """
    if current().as_json:
        from dxt_replay.replay.commands.json_output import print_json

        print_json(result if isinstance(result, Mapping) else result.as_json())
        return
    print_answer(sections(result))
    if following:
        print_next(*following)


def print_answer(sections: Sequence[Section]) -> None:
    """Print the tables of a result: without --details those in brief, under --quiet the answer alone."""
    from dxt_replay.replay.show.section import in_brief
    from dxt_replay.replay.show.terminal import print_sections

    session = current()
    short = list(sections) if session.details else in_brief(sections)
    print_sections(short[:1] if session.quiet and len(short) != len(sections) else short)


def print_next(*words: str | os.PathLike[str]) -> None:
    """Print `next: dxt-replay WORDS`, quoted for a shell, below an empty line; nothing under --quiet."""
    from dxt_replay.traces.text import printable

    if not current().quiet:
        click.echo(f"\nnext: dxt-replay {printable(shlex.join(os.fspath(word) for word in words))}")


def given_options(names: Collection[str]) -> list[str]:
    """The options among `names` that the user gave to the running command, as words for the next command."""
    context = click.get_current_context()
    words: list[str] = []
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is not click.core.ParameterSource.DEFAULT
        if option.name in names and given:
            value = context.params[option.name]
            words += [word for one in (value if option.multiple else [value]) for word in (option.opts[-1], str(one))]
    return words
