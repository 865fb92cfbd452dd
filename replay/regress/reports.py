"""The reports of `dxt-replay regress --report`: JUnit XML with a test case for each metric, Markdown, or an HTML page.

Elements and attributes of the XML are those of the schema that Jenkins' xUnit plug-in checks (junit-10.xsd), in its
order.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections.abc import Sequence

from dxt_replay.replay.regress.comparison import Regression
from dxt_replay.replay.regress.page import regress_page
from dxt_replay.replay.regress.sections import regression_sections
from dxt_replay.replay.regress.statistics import Verdict
from dxt_replay.traces.text import escaped, printable, unit_of

SUFFIXES = (".xml", ".md", ".html")

_SUITE = "dxt-replay regress"
_PROPERTIES = ("capture", "baseline", "candidate", "pace", "repeats", "seed")
"""Fields of `Setting` that are properties of the suite, beside the verdicts."""
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


def report(suffix: str, result: Regression, *, inconclusive_fails: bool) -> bytes:
    """The file of one of the kinds SUFFIXES."""
    if suffix == ".xml":
        return junit_document(result, inconclusive_fails=inconclusive_fails)
    text = regression_markdown(result) if suffix == ".md" else regress_page(result)
    return text.encode("utf-8", "replace")


def junit_document(result: Regression, *, inconclusive_fails: bool) -> bytes:
    """The result as UTF-8.

    Only the deciding metric can fail or be skipped, so the suite fails exactly if the command does. Its figures
    begin with both verdicts, on the application and on the storage itself. Those of the other metrics are their output.
    """
    # The runs of a record were another day's.
    runs = [run for run in result.runs if result.against is None or run.side == "candidate"]
    elapsed = sum(run.metrics.get("total_s", run.metrics.get("elapsed_s", 0.0)) for run in runs)
    names = [*([] if result.primary in result.metrics else [result.primary]), *result.metrics]
    cases = [_case(result, name, elapsed, inconclusive_fails or result.stopped) for name in names]
    failures, skipped = (sum(case.find(tag) is not None for case in cases) for tag in ("failure", "skipped"))
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "time": f"{elapsed:.3f}"}
    root = xml.Element("testsuites", {"name": _SUITE, **counts})
    name = f"{result.setting.capture}: {result.setting.candidate} against {result.compared_with}"
    suite = xml.SubElement(root, "testsuite", {"name": _text(name), **counts, "skipped": str(skipped)})
    properties = xml.SubElement(suite, "properties")
    said = {"headline": result.headline, "storage": result.storage}
    said |= {"verdict": result.verdict.value, "reason": result.reason}
    said |= {key: str(getattr(result.setting, key)) for key in _PROPERTIES}
    for key, value in said.items():
        xml.SubElement(properties, "property", {"name": key, "value": _text(value)})
    suite.extend(cases)
    if notes := [*result.health.obstacles, *result.health.warnings]:
        xml.SubElement(suite, "system-out").text = _text("\n".join(notes))
    xml.indent(root)
    document: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _case(result: Regression, name: str, elapsed_s: float, inconclusive_fails: bool) -> xml.Element:
    decides, metric = name == result.primary, result.metrics.get(name)
    kind, time_s = ("verdict", elapsed_s) if decides else ("informational", 0)
    case = xml.Element("testcase", {"classname": f"dxt-replay.regress.{kind}", "name": name, "time": f"{time_s:.3f}"})
    tag, about = "system-out", {}
    if decides and result.verdict is Verdict.REGRESSION:
        tag, about = "failure", {"message": _text(result.reason), "type": "regression"}
    elif decides and result.verdict is Verdict.INCONCLUSIVE and inconclusive_fails:
        tag, about = "failure", {"message": _text(result.reason), "type": "inconclusive"}
    elif decides and result.verdict is Verdict.INCONCLUSIVE:
        tag, about = "skipped", {"message": _text(result.reason)}
    lines = [result.headline, result.storage] if decides else []
    if metric is None:
        lines.append("nothing to compare")
    else:
        found, unit = metric.found, unit_of(metric.name)
        interval = "unknown" if found.low is None or found.high is None else f"{found.low:.4f} to {found.high:.4f}"
        lines += [
            f"{metric.judgement.verdict.value}: {metric.judgement.reason}",
            f"ratio {found.ratio:.4f}, interval {interval}, p {found.p_value:.4g} (adjusted {metric.p_adjusted:.4g})",
            f"baseline ({unit}): {', '.join(f'{value:.6g}' for value in metric.baseline)}",
            f"candidate ({unit}): {', '.join(f'{value:.6g}' for value in metric.candidate)}",
        ]
    xml.SubElement(case, tag, about).text = _text("\n".join(filter(None, lines)))
    return case


def _text(text: str) -> str:
    """`text` with what no XML document can hold written as an escape."""
    return _NO_XML.sub(lambda found: escaped(found[0]), text)


def regression_markdown(result: Regression) -> str:
    """The verdict and the figures as Markdown for a pull request."""
    verdict, *sections = regression_sections(result)
    lines = [f"**{_markdown(verdict.rows[0][0])}**", "", *(_markdown(row[0]) for row in verdict.rows[1:])]
    for section in sections:
        if section.columns:
            heads = [column.head for column in section.typed_columns]
            lines += ["", _row(heads), _row(["---", *("---:" for _ in heads[1:])])]
            lines += [_row([_markdown(cell) for cell in row]) for row in section.rows]
            lines += ["", *(_markdown(note) for note in section.notes)]
        else:
            lines += ["", f"<details><summary>{section.title}</summary>", ""]
            lines += [f"- {_markdown(': '.join(row))}" for row in section.rows]
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """Text with what Markdown, HTML or a forge (`@name`, `#1`) would interpret escaped; on one line."""
    plain = re.sub(r"([\\`*_~|<>\[\]&!])", r"\\\1", printable(text))
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", " ".join(plain.split()))
