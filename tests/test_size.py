"""No package is larger than its budget (`tests/size.py`)."""

from __future__ import annotations

import subprocess

import pytest

from tests import size


def test_every_package_is_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert size.main() == 0, capsys.readouterr().out
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout: the budget is that of its files")
