from __future__ import annotations

import importlib.util

from dxt_replay.replay.commands.main import COMMANDS
from tests.places import ROOT

WRITER = ROOT / "docs" / "write_commands.py"


def test_the_page_of_commands_is_in_step_with_their_help() -> None:
    spec = importlib.util.spec_from_file_location("write_commands", WRITER)
    assert spec is not None
    assert spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    page = writer.page()
    assert all(f"## dxt-replay {name}\n" in page for name in COMMANDS)
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == page, "run `make commands`"
