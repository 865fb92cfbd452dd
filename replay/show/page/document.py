"""A self-contained HTML page: its sections, and the scripts and data that it contains."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from dxt_replay.replay.show.page.html_tables import html_text

_FOLDER = "dxt_replay.replay.show.page"
_PLOTLY = "vendor/plotly-cartesian-4.1.1.min.js.gz"
_STYLE = "page.css"

_TROUBLE = (
    '<noscript><p class="note">Charts, sorting and filters need JavaScript; the tables do not.</p></noscript>'
    '<p id="trouble" class="note" hidden></p>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """Files inside a page: plotly's bundle as gzip, and scripts and the style sheet of this package as text."""

    plotly: bytes
    script: str
    style: str

    @classmethod
    def of_tables(cls) -> Assets:
        """Those of a page without charts, which needs no script."""
        return cls(plotly=b"", script="", style=(files(_FOLDER) / _STYLE).read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One section of a page: `id`, name in the menu, HTML."""

    id: str
    name: str
    html: str


def load_assets(scripts: Iterable[str]) -> Assets:
    """The assets of a page that runs these scripts of this folder, in this order."""
    folder = files(_FOLDER)
    return Assets(
        plotly=(folder / _PLOTLY).read_bytes(),
        script="\n".join((folder / name).read_text(encoding="utf-8") for name in scripts),
        style=(folder / _STYLE).read_text(encoding="utf-8"),
    )


def document(
    title: str,
    heading: str,
    sections: Sequence[Part],
    summary: Mapping[str, Any],
    data: Mapping[str, Any],
    assets: Assets,
) -> str:
    """The whole page, which needs no network.

    `summary`: an object that other programs can read from the page (`id="summary"`); `data`: what the scripts draw.
    """
    packed = {"plotly": _base64(assets.plotly), "data": _packed(_json(data))} if assets.script else {}
    plain = _json(summary)
    menu = "".join(f'<a href="#{part.id}">{escape(part.name)}</a>' for part in sections)
    body = "".join(
        f'<section id="{part.id}" aria-labelledby="{part.id}-head"><h2 id="{part.id}-head">{escape(part.name)}</h2>'
        f"{part.html}</section>"
        for part in sections
    )
    nonce = hashlib.sha256("".join([body, plain, *packed.values()]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    # Only scripts with this word run, and nothing is ever fetched: whatever a recorded path holds stays text.
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    carried = "".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in packed.items())
    script = f'<script nonce="{nonce}">{assets.script}</script>' if assets.script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{html_text(title)}</title><link rel="icon" href="data:,"><style>{assets.style}</style></head>\n'
        f'<body><header><h1>{html_text(heading)}</h1><nav aria-label="sections">{menu}</nav></header>\n<main>'
        f"{_TROUBLE if assets.script else ''}{body}</main>\n"
        f'<script type="application/json" id="summary">{plain}</script>\n{carried}\n{script}</body></html>\n'
    )


def _packed(text: str) -> str:
    """gzip in base64, which `inflate.js` unpacks."""
    return _base64(gzip.compress(text.encode("utf-8", "surrogatepass"), 9, mtime=0))


def _base64(packed: bytes) -> str:
    """Bytes as text that may stand inside a script element."""
    return base64.b64encode(packed).decode("ascii")


def _json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
