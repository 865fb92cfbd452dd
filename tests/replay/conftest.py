"""A command as a user types it, for the tests of commands and of their words."""

import json
import shlex

import pytest

from dxt_replay.replay.commands.main import main


@pytest.fixture
def say(capsys, monkeypatch):
    """Types a line: what it printed, lines with single spaces, of --json the object; its stderr is `say.err`.

    It ends with `status`, and says nothing on stderr unless that is 2 or it `warns`. The terminal wraps no line.
    """
    monkeypatch.setenv("COLUMNS", "9999")

    def said(line, status=0, warns=False):
        capsys.readouterr()
        ended = main(words := shlex.split(line))
        printed = capsys.readouterr()
        said.err = printed.err
        assert ended == status, printed.err
        assert status == 2 or warns or printed.err == ""
        if "--json" in words or line.endswith("-o -"):
            return json.loads(printed.out) if "--json" in words else printed.out
        return "\n".join(" ".join(text.split()) for text in printed.out.splitlines())

    return said
