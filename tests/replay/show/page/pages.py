"""What the tests of the HTML page share: captures to draw, and what is carried inside of a page."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

from dxt_replay.profiler_merge.analysis.overview import overview
from dxt_replay.replay.show.page.page import report_page
from tests.capture_builder import File, Span, build_capture, read, write

HOSTILE = (
    "/data/<img src=x onerror=window.hacked=1>.h5",
    "/data/</script><script>window.hacked=1</script>",
    '/data/"><svg onload=window.hacked=1>&amp;',
    "/data/<a href='javascript:window.hacked=1'>click</a>",
    "/data/<!--<script>",
    "/data/tab\there",
    "/data/\u202ereversed\x1b[31m",
)
"""Recorded paths that a page must show as text."""

SHOWN = (*HOSTILE[:5], "/data/tab\\there", "/data/\\u202ereversed\\x1b[31m")
"""The same as a page shows them."""

MS = 1_000_000


def training(folder, name="training", delay_ns=0, due=False):
    """Two ranks, ten steps of 20 ms with a read of each hostile file before them, and a write at the end."""
    ops, spans = [], []
    for rank in (0, 1):
        for step in range(10):
            begin = 100 * MS + 20 * MS * step + MS * rank
            for number in range(len(HOSTILE)):
                start = begin + 100_000 * number
                times = {"start_ns": start + delay_ns, "end_ns": start + delay_ns + 50_000}
                replayed = {"due_ns": start, "result": 4096} if due else {}
                ops.append(read(number, offset=4096 * step, length=4096, rank=rank, step=step, **times, **replayed))
            spans += [
                Span("step", begin, begin + 15 * MS, "train", rank=rank, step=step),
                Span("input_wait", begin, begin + 2 * MS, "next_batch", rank=rank, step=step),
                Span("compute", begin + 3 * MS, begin + 12 * MS, "compute", rank=rank, step=step),
            ]
    times = {"start_ns": 400 * MS + delay_ns, "end_ns": 401 * MS + delay_ns}
    ops.append(write(0, offset=0, length=123_457, **times, **({"due_ns": 400 * MS} if due else {})))
    return build_capture(folder, ops=ops, files=[File(path) for path in HOSTILE], spans=spans, name=name)


def page_of(capture):
    """The overview of a capture, and its page."""
    found = overview(capture)
    return found, report_page(found)


def carried(page, name):
    """JSON inside of a page: `summary` (plain) or `data` (packed)."""
    match = re.search(rf'<script type="[a-z/]+" id="{name}">([^<]*)</script>', page)
    assert match, f"the page carries no {name}"
    text = match[1]
    return json.loads(text if name == "summary" else gzip.decompress(base64.b64decode(text)))


class Elements(HTMLParser):
    """Tags of a page with their attributes, ids, and the text of table cells."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self._in_cell = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self._in_cell = True
            self.cells.append("")
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data):
        if self._in_cell:
            self.cells[-1] += data

    def of(self, tag):
        """Attributes of all elements of a tag."""
        return [attributes for name, attributes in self.tags if name == tag]
