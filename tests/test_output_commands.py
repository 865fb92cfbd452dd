"""The table of commands that write an output has all of them, and each writes it where nothing is in the way."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from dxt_replay.replay.commands.main import COMMANDS, cli, main
from tests.output_commands import OUTPUT_COMMANDS
from tests.test_nothing_outside import small_capture

OUTPUT_OPTIONS = {"-o", "--report", "--record", "--logs"}
INPUT_OPTIONS = {
    "--target", "--baseline", "--candidate", "--library", "--profile", "--source", "--key-file", "--floor",
    "--include", "--check",
}  # fmt: skip
"""Options that take a path: of what is written, and of what is read or staged into."""

QUICK = ("summary csv", "fit")


def test_every_option_that_names_an_output_is_in_the_table(tmp_path: Path) -> None:
    found = set()
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for option in (each for each in command.params if isinstance(each, click.Option)):
            if isinstance(option.type, click.Path) or OUTPUT_OPTIONS & set(option.opts):
                assert set(option.opts) & (OUTPUT_OPTIONS | INPUT_OPTIONS), (name, option.opts)
                found |= {(name, word) for word in set(option.opts) & OUTPUT_OPTIONS}
    lines = [command.words(tmp_path / "c.capture", tmp_path / "out") for command in OUTPUT_COMMANDS.values()]
    assert {(line[0], word) for line in lines for word in line if word in OUTPUT_OPTIONS} == found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OUTPUT_COMMANDS]
)
def test_each_writes_its_output_where_nothing_is_in_the_way(tmp_path: Path, name: str) -> None:
    command, capture = OUTPUT_COMMANDS[name], small_capture(tmp_path)
    out = tmp_path / command.name
    out.parent.mkdir(exist_ok=True)
    if command.staged:
        (tmp_path / "twin").mkdir(exist_ok=True)
        assert main(["stage", str(capture), "--target", str(tmp_path / "twin")]) == 0
    assert main([str(word) for word in command.line(capture, out)]) == 0
    assert out.exists()
    assert out.is_file() == command.is_file
