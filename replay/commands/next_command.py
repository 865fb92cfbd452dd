"""The closing line of a command: which command usually comes next, ready to be copied."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

import click

from dxt_replay.replay.commands.session import current


def print_next(*words: str | os.PathLike[str]) -> None:
    """Print `next: dxt-replay WORDS`, quoted for a shell, below an empty line; nothing under --quiet."""
    from dxt_replay.traces.text import printable

    if not current().quiet:
        click.echo(f"\nnext: dxt-replay {printable(shlex.join(os.fspath(word) for word in words))}")


def given_options(names: Iterable[str]) -> list[str]:
    """The options of the running command among the parameters `names` that the user gave, as words to give again."""
    context = click.get_current_context()
    words: list[str] = []
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is not click.core.ParameterSource.DEFAULT
        if option.name in names and given:
            value = context.params[option.name]
            words += [word for one in (value if option.multiple else [value]) for word in (option.opts[-1], str(one))]
    return words
