"""The figures as text: each point beside the printed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.paper_figures.measured import Outcome
from benchmarks.paper_figures.optimum import jump, optimum
from benchmarks.paper_figures.published import PRINTED, PagePoint
from benchmarks.paper_figures.sweeps import Sweep

HEAD = ("", "elapsed s", "I/O s", "reads", "GiB read", "page: job s", "I/O s", "reads", "GiB")


def sweep_table(sweep: Sweep, found: Sequence[Outcome], pages: Sequence[PagePoint]) -> str:
    """A panel: one line for each point, simulated and as its page prints it."""
    printed = {page.at: page for page in pages}
    rows = [[sweep.varies, *HEAD[1:]]]
    for each in found:
        page = printed.get(each.at)
        rows.append(
            [
                each.at,
                f"{each.elapsed_s:.2f}",
                f"{each.io_s:.2f}",
                f"{each.reads:,}",
                f"{each.gib:.3f}",
                *(
                    ["", "", "", ""]
                    if page is None
                    else [f"{page.job_s:g}", f"{page.io_s:g}", f"{page.operations:,}", f"{page.gib:g}"]
                ),
            ]
        )
    return aligned(rows)


def verdict(sweep: Sweep, found: Sequence[Outcome], pages: Sequence[PagePoint]) -> dict[str, object]:
    """Place and gain of the optimum: simulated, on the pages, printed."""
    points = [each.at for each in found]
    elapsed, io = [each.elapsed_s for each in found], [each.io_s for each in found]
    result: dict[str, object] = {
        "figure": sweep.figure,
        "printed": PRINTED[sweep.figure].text,
        "here": _optima(points, elapsed, io, sweep.base_at),
    }
    if pages:
        at = [page.at for page in pages]
        result["pages"] = _optima(at, [page.job_s for page in pages], [page.io_s for page in pages], sweep.base_at)
        matched = {page.at: page for page in pages}
        ratios = [each.reads / matched[each.at].operations for each in found if each.at in matched]
        result["reads_over_pages"] = [round(min(ratios), 4), round(max(ratios), 4)]
        volumes = [each.gib / matched[each.at].gib for each in found if each.at in matched]
        result["bytes_over_pages"] = [round(min(volumes), 4), round(max(volumes), 4)]
    return result


def _optima(points: Sequence[str], elapsed: Sequence[float], io: Sequence[float], base_at: str) -> dict[str, object]:
    by_time, by_io = optimum(points, elapsed, base_at), optimum(points, io, base_at)
    place, factor = jump(points, io)
    return {
        "best_elapsed": by_time.best_at,
        "flat": list(by_time.flat),
        "gain_elapsed": round(by_time.gain, 3),
        "best_io": by_io.best_at,
        "gain_io": round(by_io.gain, 3),
        "io_jump_at": place,
        "io_jump": round(factor, 2),
    }


def verdict_lines(found: Mapping[str, object]) -> list[str]:
    """A verdict as text."""
    return [f"  {name}: {value}" for name, value in found.items() if name != "figure"]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows as text, the first column to the left, the others to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    )
