"""docs/errors.md quotes messages that the code has."""

import ast
import re

from tests.places import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text()
QUOTED = re.findall(r"^> (.+)$", PAGE, re.MULTILINE)
FOLDERS = ("traces", "profiler_merge", "replay", "workloads")


def _text(node: ast.AST) -> str:
    """A string of the source, `...` for each value that it takes; empty for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "..." for part in node.values)
    return ""


def _messages() -> str:
    """All strings of the code, one after the other."""
    paths = [path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py")]
    return "\0".join(_text(node) for path in paths for node in ast.walk(ast.parse(path.read_text())))


def test_every_quoted_message_is_in_the_code() -> None:
    messages = _messages()
    assert [quoted for quoted in QUOTED if quoted not in messages] == []


def test_the_page_has_the_messages_that_users_meet() -> None:
    assert len(QUOTED) >= 15
    assert len(set(QUOTED)) == len(QUOTED)
