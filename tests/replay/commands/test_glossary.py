from __future__ import annotations

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show.glossary import WORDS


def test_all_words_or_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glossary"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in WORDS)
    assert main(["glossary", "LAG"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["Glossary", "lag"]
    assert main(["glossary", "io_hid"]) == 0
    assert "io_hidden_ns" in capsys.readouterr().out
    assert main(["glossary", "zebra"]) == 2
    assert "dxt-replay glossary lists" in capsys.readouterr().err
