"""Writes docs/commands.md from the command line itself: `python docs/write_commands.py > docs/commands.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from dxt_replay.replay.commands.main import COMMANDS, cli

INTRODUCTION = """# The commands of dxt-replay

`make commands` writes this page from the help of each command. Every option can also be set in the environment, under
the name in the last column; the command line takes precedence.
"""


def page() -> str:
    """The page, a section a command."""
    context = click.Context(cli, info_name="dxt-replay")
    return "\n".join([INTRODUCTION, *(line for name in COMMANDS for line in section(name, context))])


def section(name: str, context: click.Context) -> Iterator[str]:
    """Usage, explanation and options of a command."""
    command = cli.get_command(context, name)
    assert command is not None
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    words = [argument.metavar or (argument.name or "").upper() for argument in arguments]
    yield f"## dxt-replay {name}\n"
    yield f"`dxt-replay {' '.join([name, *words, '[OPTIONS]'])}`\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    yield "| option | what it does | in the environment |"
    yield "|---|---|---|"
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            variable = f"DXT_REPLAY_{name.upper()}_{(option.name or '').upper()}"
            yield f"| {spelling(option)} | {explanation(option)} | `{variable}` |"
    yield ""


def explanation(option: click.Option) -> str:
    """Its help, with the default where --help shows it."""
    default = f" [default: {option.default}]" if option.show_default and not option.is_flag else ""
    return ((option.help or "") + default).strip().replace("|", "\\|")


def spelling(option: click.Option) -> str:
    """`-o`, `--output FILE`: how the option is written."""
    value = ""
    if not option.is_flag:
        choices = getattr(option.type, "choices", None)
        value = " " + (option.metavar or ("|".join(map(str, choices)) if choices else option.type.name.upper()))
    names = [*option.opts, *option.secondary_opts]
    return (
        ", ".join(f"`{name}`" for name in names[:-1])
        + (", " if names[1:] else "")
        + f"`{names[-1]}{value}`".replace("|", "\\|")
    )


if __name__ == "__main__":
    print(page(), end="")
