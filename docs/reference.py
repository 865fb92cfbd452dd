"""Makes the parts of the reference that the code itself describes, when the site is built: `docs/conf.py` adds them.

- commands: every option of every command, from its help
- tables: the columns of the tables (`analysis/tables.py`) and the keys of the JSON Schemas (`dxt_replay/schemas`)
- workloads: the keys of a DLIO description, their values and defaults
- python: signature and docstring of each public name
- glossary: durations, and the words of the output and the options (`show/glossary.py`)
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import dxt_replay
from dxt_replay.profiler_merge.analysis.tables import COLUMNS, GROUPS, TABLES
from dxt_replay.replay.commands.main import COMMANDS, cli
from dxt_replay.replay.show.glossary import DURATIONS, WORDS
from dxt_replay.traces.text import unit_of
from dxt_replay.workloads.values import KEYS, NOT_FOLLOWED, SPELLINGS

SCHEMAS = Path(__file__).resolve().parent.parent / "src" / "dxt_replay" / "schemas"
MADE_BY_CALLERS = {"Thresholds", "Workers"}
"""Classes that a caller makes; the others are results, or dictionaries of keywords."""


def commands() -> Iterator[str]:
    """A section a command: usage, explanation, options."""
    context = click.Context(cli, info_name="dxt-replay")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        words = [argument.metavar or (argument.name or "").upper() for argument in arguments]
        yield f"\n## dxt-replay {name}\n"
        yield f"`dxt-replay {' '.join([name, *words, '[OPTIONS]'])}`\n"
        yield inspect.cleandoc(command.help or "") + "\n"
        yield "| option | what it does |"
        yield "|---|---|"
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                default = f" [default: {option.default}]" if option.show_default and not option.is_flag else ""
                yield _row(_spelling(option), (option.help or "") + default)


def _spelling(option: click.Option) -> str:
    """`-o`, `--output FILE`: how the option is written."""
    value = ""
    if not option.is_flag:
        choices = getattr(option.type, "choices", None)
        value = " " + (option.metavar or ("|".join(map(str, choices)) if choices else option.type.name.upper()))
    *others, last = [*option.opts, *option.secondary_opts]
    return ", ".join([*(f"`{name}`" for name in others), f"`{last}{value}`"])


def tables() -> Iterator[str]:
    """A section a table, one with all columns, and a section a command with the keys of its `--json`."""
    every = {**TABLES, "groups (--by)": GROUPS}
    for name, table in every.items():
        yield f"\n### {name}\n\n{table.row}\n"
        yield f"Columns: {', '.join(f'`{column}`' for column in table.columns)}."
    yield "\n## Columns\n\nThe meaning says where a column differs between tables.\n"
    yield "| column | unit | meaning |\n|---|---|---|"
    for column in sorted({column for table in every.values() for column in table.columns}):
        yield _row(f"`{column}`", unit_of(column), COLUMNS[column].meaning)
    yield "\n## Keys of --json"
    for path in sorted(SCHEMAS.glob("*.json")):
        schema: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        yield f"\n### {schema['title'].removeprefix('dxt-replay ')}\n\n{schema.get('description', '')}\n"
        yield "| key | shown as | holds |\n|---|---|---|"
        yield from (
            _row(f"`{key}`", about.get("title", ""), about.get("description", ""))
            for key, about in keys_of(schema).items()
        )


def keys_of(schema: Mapping[str, Any], above: str = "") -> Mapping[str, Any]:
    """The keys of an output, and those within them that have a title; not `schema_version`, which all of them have."""
    found: dict[str, Any] = {}
    for choice in schema.get("anyOf", [schema]):
        for key, about in choice.get("properties", {}).items():
            if key != "schema_version" and (not above or "title" in about):
                found[above + key] = about
            found |= keys_of(about, f"{above}{key}.")
    return found


def dlio() -> Iterator[str]:
    """The keys of a description that have an effect, and those that have none."""
    yield "\n| key | takes | default |\n|---|---|---|"
    for key in KEYS.values():
        default = "" if key.default in (None, "", ()) else f"`{key.default}`"
        yield _row(f"`{key.name}`", key.wanted, default)
    yield "\n| other key | | why |\n|---|---|---|"
    yield from (_row(f"`{name}`", kind, why) for name, (kind, why) in NOT_FOLLOWED.items())
    yield "\n| other spelling | followed as |\n|---|---|"
    yield from (_row(f"`{name}`", f"`{key}`") for name, key in SPELLINGS.items())


def python() -> Iterator[str]:
    """A section a public function or class: signature and docstring. Values and errors are in the text of the page."""
    for name in sorted(dxt_replay.__all__, key=str.lower):
        value = getattr(dxt_replay, name)
        if not callable(value) or (isinstance(value, type) and issubclass(value, Exception)):
            continue
        yield f"\n### {name}\n\n```python\n{_signature(name, value)}\n```\n"
        yield re.sub(
            r"^(?!Raises|Returns)(`?\w+`?(?:, `?\w+`?)*): ", r"- \1: ", inspect.getdoc(value) or "", flags=re.MULTILINE
        )


def _signature(name: str, value: Callable[..., Any]) -> str:
    """How it is called: names and defaults, without types. Results of functions are not made by callers."""
    if isinstance(value, type) and name not in MADE_BY_CALLERS:
        return f"class {name}"
    given = inspect.signature(value)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in given.parameters.values()]
    result = "" if isinstance(value, type) else f" -> {given.return_annotation}"
    return f"{name}{given.replace(parameters=plain, return_annotation=inspect.Signature.empty)}{result}"


def glossary() -> Iterator[str]:
    """Durations, then words, each with its meaning."""
    return (f"- **{word}**: {meaning}" for word, meaning in {**DURATIONS, **WORDS}.items())


def _row(*cells: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.strip().replace('|', chr(92) + '|') for cell in cells)} |"


GENERATED: Mapping[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "workloads": dlio,
    "python": python,
    "tables": tables,
    "glossary": glossary,
}
"""Page -> lines that the site has after its text."""


def generated(page: str) -> str:
    """What a page of the site has after its text: empty for most."""
    return "\n".join(GENERATED[page]()) + "\n" if page in GENERATED else ""
