"""A small canvas that writes SVG: what docs/write_pictures.py draws with. Coordinates are pixels from the top left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

INK, FAINT, GRID = "#24292f", "#57606a", "#d0d7de"
BLUE, RED, YELLOW, GREY, GREEN = "#1f6fb4", "#c8324b", "#dd9a1b", "#a9b4c0", "#2b8a5b"


def number(value: float) -> str:
    """With one decimal at most, so that a picture does not depend on the last bits of a machine."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(slots=True)
class Picture:
    """An SVG on a white ground, so that it can be read on a dark page too. `title` is what a screen reader says."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, left: float, top: float, width: float, height: float, colour: str, *, strong: float = 1.0) -> None:
        """A filled box, at least 1.2 pixels wide."""
        shade = "" if strong == 1.0 else f' fill-opacity="{strong}"'
        size = f'width="{number(max(width, 1.2))}" height="{number(height)}"'
        self.parts.append(f'<rect x="{number(left)}" y="{number(top)}" {size} fill="{colour}"{shade}/>')

    def line(
        self, points: Iterable[tuple[float, float]], colour: str = INK, *, dashes: str = "", arrow: bool = False,
        thick: float = 1.5,
    ) -> None:  # fmt: skip
        """A line through points (x, y); `arrow`: with a head at its end."""
        places = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        look = f' stroke-dasharray="{dashes}"' if dashes else ""
        look += ' marker-end="url(#head)"' if arrow else ""
        self.parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{thick}"{look}/>')

    def dot(self, x: float, y: float, colour: str = BLUE, *, hollow: bool = False) -> None:
        """A point of a chart."""
        fill = "white" if hollow else colour
        self.parts.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="4" fill="{fill}" stroke="{colour}"/>')

    def text(
        self, x: float, y: float, text: str, *, colour: str = INK, anchor: str = "start", size: int = 13,
        bold: bool = False,
    ) -> None:  # fmt: skip
        """A line of text; (x, y) is on its base line."""
        look = f' font-size="{size}"' if size != 13 else ""
        look += f' text-anchor="{anchor}"' if anchor != "start" else ""
        look += f' fill="{colour}"' if colour != INK else ""
        look += ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{number(x)}" y="{number(y)}"{look}>{escape(text)}</text>')

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
        """Boxes with words, side by side."""
        for colour, word in entries:
            self.box(x, y - 10, 12, 12, colour)
            self.text(x + 17, y, word)
            x += 34 + 7 * len(word)

    def svg(self) -> str:
        """The file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="sans-serif" font-size="13" fill="{INK}" '
            f'role="img">\n<title>{escape(self.title)}</title>\n'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>\n'
        )
        ground = f'<rect width="{self.width}" height="{self.height}" rx="6" fill="white"/>\n'
        return head + ground + "\n".join(self.parts) + "\n</svg>\n"
