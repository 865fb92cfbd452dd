"""No package is larger than its budget (`tests/size.py`)."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests import size


def test_every_package_is_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        size.tracked()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout: the budget is that of its files")
    status = size.main()
    assert status == 0, capsys.readouterr().out


def test_more_than_the_budget_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    budget = json.loads(size.BUDGET.read_text())
    assert set(budget) == {*size.PACKAGES, "options"}
    assert size.over_budget(budget, budget) == []
    assert size.over_budget({"replay": 1001, "options": 7}, {"replay": 1000, "options": 7}) == [
        "replay: 1,001, the budget is 1,000"
    ]
