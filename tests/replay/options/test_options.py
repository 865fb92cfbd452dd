"""An option is stated once: the keyword, the option of the command, their defaults and checks follow from it."""

from __future__ import annotations

import inspect
from typing import Any

import click
import pytest

import dxt_replay
from dxt_replay.profiler_merge.recorder.tracer import TRACERS as KNOWN_TRACERS
from dxt_replay.replay.commands.family_options import as_keywords
from dxt_replay.replay.commands.main import cli
from dxt_replay.replay.engine.items import LoopPace
from dxt_replay.replay.options import choices
from dxt_replay.replay.options.option import filled, options_of
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.paces import PACE_CHOICES, Pace
from dxt_replay.workloads.description import READINGS as KNOWN_READINGS

FAMILIES = {
    "merge": choices.MergeChoices,
    "generate": choices.GenerateChoices,
    "record": choices.RecordChoices,
    "regress": choices.RegressChoices,
    "run": choices.RunChoices,
    "simulate": choices.SimulateChoices,
    "transform": choices.TransformChoices,
}
"""Name of a command and of its function -> the family of both."""

BY_CAPTURE = {("regress", "pace")}
"""What the command leaves to the capture."""


def options_of_command(name: str) -> dict[str, click.Option]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return {option.name or "": option for option in command.params if isinstance(option, click.Option)}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_function_and_the_command_have_each_option_with_its_default(name: str) -> None:
    function = getattr(dxt_replay, name)
    keywords, options = inspect.signature(function).parameters, options_of_command(name)
    for keyword, stated in options_of(FAMILIES[name]).items():
        assert keywords[keyword].default == stated.option.default
        assert f"`{keyword}`{' False' * stated.is_negative}: {stated.option.help}" in function.__doc__
        if stated.option.flags == ():
            assert stated.parameter not in options
            continue
        option = options[stated.parameter]
        assert option.metavar == stated.option.metavar
        if (name, keyword) not in BY_CAPTURE:
            default = option.default if isinstance(option.default, (bool, int, float, str)) else None
            expected = False if stated.is_negative else stated.option.default
            assert (default or None) == (expected or None)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"pase": "none"}, TypeError, "there is no choice 'pase': RunChoices has pace, speed"),
        ({"pace": None}, UsageError, "pace None: choose timed"),
        ({"pace": "now"}, UsageError, "pace 'now': choose timed, think, steps, none"),
        ({"compute": "wait"}, UsageError, "compute 'wait': choose sleep, spin, skip"),
    ],
)
def test_what_a_family_does_not_have_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        filled(choices.RunChoices, given)


def test_what_is_not_given_has_its_default() -> None:
    found = filled(choices.RunChoices, {"speed": 2.0})
    assert (found["pace"], found["speed"], found["io_speed"], found["reconstruct"]) == ("timed", 2.0, None, True)


def test_parameters_of_a_command_become_keywords() -> None:
    given = {"no_reconstruct": True, "no_extend": False, "align": "wall", "logs": ("a",)}
    assert as_keywords(choices.MergeChoices, given) == {
        "reconstruct": False, "extend": True, "align": "wall", "logs": ("a",),
    }  # fmt: skip
    assert as_keywords(choices.RegressChoices, {"threshold": 3.0}) == {"threshold_pct": 3.0}


def test_the_choices_are_those_of_the_homes_that_a_help_does_not_import() -> None:
    assert choices.READINGS == KNOWN_READINGS
    assert choices.TRACERS == KNOWN_TRACERS


def test_a_pace_is_a_row_with_a_clock_of_the_loop() -> None:
    assert PACE_CHOICES == ("timed", "think", "steps", "none")
    assert [LoopPace[pace.clock].name for pace in Pace] == ["ABSOLUTE", "THINK", "THINK", "NONE"]
    assert [pace.value for pace in Pace if pace.is_closed_loop] == ["think", "steps"]
    assert [pace.value for pace in Pace if not pace.follows_recording] == ["none"]
    assert all(Pace.named(name).value == name for name in PACE_CHOICES)
    assert all(pace.meaning in choices.PACE_HELP for pace in Pace)
