"""The options that `run` and `regress` share."""

from __future__ import annotations

from dxt_replay.replay.commands.regress import command as regress
from dxt_replay.replay.commands.replay_options import APIS, PACES
from dxt_replay.replay.commands.run import command as run
from dxt_replay.traces.replay_record import API_CHOICES, PACE_CHOICES


def test_the_choices_are_those_that_a_replay_can_record() -> None:
    assert (APIS, PACES) == (API_CHOICES, PACE_CHOICES)


def test_run_and_regress_mean_the_same_by_the_same_name() -> None:
    ours = {option.name: option for option in run.params}
    theirs = {option.name: option for option in regress.params}
    shared = ("speed", "compute_speed", "io_speed", "compute", "api", "reconstruct", "direct")
    for name in shared:
        assert ours[name].to_info_dict() == theirs[name].to_info_dict()
