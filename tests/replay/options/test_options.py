"""An option is stated once: the keyword, the option of the command, their defaults and checks follow from it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.tables import GROUPINGS as KNOWN_GROUPINGS
from dxt_replay.profiler_merge.recorder.tracers import TRACERS as KNOWN_TRACERS
from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.main import cli, main
from dxt_replay.replay.engine.items import LoopPace
from dxt_replay.replay.options import choices, looking, making
from dxt_replay.replay.options.option import Stated, filled, options_of
from dxt_replay.replay.regress.statistics import MAX_PAIRS
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.paces import PACE_CHOICES, Pace
from dxt_replay.workloads.description import READINGS as KNOWN_READINGS

FAMILIES = [
    ("calibrate", dxt_replay.calibrate, choices.CalibrateChoices),
    ("capacity", dxt_replay.capacity, choices.CapacityChoices),
    ("compare", dxt_replay.Thresholds, looking.ThresholdChoices),
    ("compare", dxt_replay.compare, looking.PairChoices),
    ("export", dxt_replay.export, looking.ExportChoices),
    ("fit", dxt_replay.fit, making.FitChoices),
    ("generate", dxt_replay.generate, making.GenerateChoices),
    ("history", dxt_replay.history, choices.HistoryChoices),
    ("merge", dxt_replay.merge, making.MergeChoices),
    ("merge", dxt_replay.merge_each, making.MergeEachChoices),
    ("record", dxt_replay.record, making.RecordChoices),
    ("regress", dxt_replay.regress, choices.RegressChoices),
    ("report", dxt_replay.report, looking.PairChoices),
    ("run", dxt_replay.run, choices.ReplayChoices),
    ("run", dxt_replay.run_repeatedly, choices.ReplayChoices),
    ("simulate", dxt_replay.simulate, choices.SimulateChoices),
    ("stage", dxt_replay.stage, choices.StageChoices),
    ("summary", dxt_replay.part, looking.FilterChoices),
    ("summary", dxt_replay.tables, looking.TableChoices),
    ("transform", dxt_replay.transform, making.TransformChoices),
    ("verify", dxt_replay.verify, looking.VerifyChoices),
]
"""Name of a command, its function, and the family of both."""

WRONG = [
    (name, function, each)
    for name, function, family in FAMILIES
    for each in options_of(family).values()
    if each.flags and (each.option.choices or each.option.least is not None)
]
"""Options whose values are limited."""

BY_CAPTURE = {("regress", "pace")}
"""What the command leaves to the capture."""


def options_of_command(name: str) -> dict[str, click.Option]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return {option.name or "": option for option in command.params if isinstance(option, click.Option)}


@pytest.mark.parametrize(("name", "function", "family"), FAMILIES)
def test_the_function_and_the_command_have_each_option_with_its_default(
    name: str, function: Callable[..., Any], family: type[Any]
) -> None:
    keywords, options = inspect.signature(function).parameters, options_of_command(name)
    for keyword, stated in options_of(family).items():
        assert keywords[keyword].default == stated.option.default
        if function is not dxt_replay.Thresholds:
            assert f"`{keyword}`{' False' * stated.is_negative}: {stated.option.help}" in str(function.__doc__)
        if stated.option.flags == ():
            assert stated.parameter not in options
            continue
        option = options[stated.parameter]
        assert option.metavar == stated.option.metavar
        if (name, keyword) not in BY_CAPTURE:
            default = option.default if isinstance(option.default, (bool, int, float, str)) else None
            expected = False if stated.is_negative else stated.option.default
            assert (default or None) == (expected or None)


def outside(each: Stated) -> list[str | int | float]:
    """Values that an option does not allow."""
    option = each.option
    if option.choices:
        return ["other"] if isinstance(option.choices[0], str) else [7]
    assert option.least is not None
    below = option.least - (1 if option.inclusive else 0)
    return [below, *([] if option.most is None else [option.most + (1 if option.inclusive else 0)])]


@pytest.mark.parametrize(("name", "function", "each"), WRONG, ids=[f"{n}-{e.keyword}" for n, _, e in WRONG])
def test_a_wrong_value_is_the_same_error_on_the_command_line_and_in_python(
    name: str, function: Callable[..., Any], each: Stated, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in outside(each):
        assert main([name, each.flags[-1], str(value), "--json"]) == 2
        printed = json.loads(capsys.readouterr().out)["error"]
        needed = [
            2 if keyword.annotation == "int" else "absent"
            for keyword in inspect.signature(function).parameters.values()
            if keyword.default is keyword.empty and keyword.kind is keyword.POSITIONAL_OR_KEYWORD
        ]
        with pytest.raises(UsageError) as raised:
            function(*needed, **{each.keyword: value})
        assert (printed["type"], printed["message"]) == (type(raised.value).__name__, str(raised.value))
        assert printed["message"].startswith(f"{each.flags[-1]} ")


def test_a_name_that_is_no_format_or_table_is_the_same_error_on_the_command_line_and_in_python(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments, call in (
        (("export", "absent", "--to", "xls", "-o", "out"), lambda: dxt_replay.export("absent", "xls", "out")),
        (("summary", "absent", "--show", "stepz"), lambda: dxt_replay.tables("absent", ["stepz"])),
    ):
        assert main([*arguments, "--json"]) == 2
        printed = json.loads(capsys.readouterr().out)["error"]
        with pytest.raises(UsageError) as raised:
            call()
        assert (printed["type"], printed["message"]) == ("UsageError", str(raised.value))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"pase": "none"}, TypeError, "there is no choice 'pase': RunChoices has pace, speed"),
        ({"pace": None}, UsageError, "--pace 'None': choose timed"),
        ({"pace": "now"}, UsageError, "--pace 'now': choose timed, think, steps, none"),
        ({"compute": "wait"}, UsageError, "--compute 'wait': choose sleep, spin"),
    ],
)
def test_what_a_family_does_not_have_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        filled(choices.RunChoices, given)


def test_what_is_not_given_has_its_default() -> None:
    found = filled(choices.RunChoices, {"speed": 2.0})
    assert (found["pace"], found["speed"], found["io_speed"], found["compute"]) == ("timed", 2.0, None, "sleep")


def test_parameters_of_a_command_become_keywords() -> None:
    @click.command()
    @family_options(making.MergeChoices, "reconstruct", "profiles")
    @family_options(choices.RegressChoices, "threshold_pct")
    @click.option("--other")
    def command(**given: Any) -> dict[str, Any]:
        return given

    found = command.main(["--no-reconstruct", "--profile", "a", "--threshold", "3"], standalone_mode=False)
    assert found == {
        "reconstruct": False, "profiles": (Path("a"),), "threshold_pct": 3.0, "other": None,
    }  # fmt: skip


def test_the_choices_are_those_of_the_homes_that_a_help_does_not_import() -> None:
    assert choices.READINGS == KNOWN_READINGS
    assert choices.TRACERS == KNOWN_TRACERS
    assert tuple(KNOWN_GROUPINGS) == choices.GROUPINGS
    assert options_of(choices.RegressChoices)["repeats"].option.most == MAX_PAIRS


def test_a_pace_is_a_row_with_a_clock_of_the_loop() -> None:
    assert PACE_CHOICES == ("timed", "think", "steps", "none")
    assert [LoopPace[pace.clock].name for pace in Pace] == ["ABSOLUTE", "THINK", "THINK", "NONE"]
    assert [pace.value for pace in Pace if pace.is_closed_loop] == ["think", "steps"]
    assert [pace.value for pace in Pace if not pace.follows_recording] == ["none"]
    assert all(Pace.named(name).value == name for name in PACE_CHOICES)
    assert all(pace.meaning in choices.PACE_HELP for pace in Pace)
