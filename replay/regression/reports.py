"""The reports of `dxt-replay regress --report`: JUnit XML with a test case for each metric, Markdown, or an HTML page.

Elements and attributes of the XML are those of the schema that Jenkins' xUnit plug-in checks (junit-10.xsd), in its
order.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml

from dxt_replay.replay.regression.comparison import MetricComparison, Regression
from dxt_replay.replay.regression.interval_verdict import Verdict
from dxt_replay.replay.regression.page import regress_page
from dxt_replay.replay.regression.regression_sections import regression_markdown
from dxt_replay.traces.text import escaped, unit_of

SUFFIXES = (".xml", ".md", ".html")

_SUITE = "dxt-replay regress"
_PROPERTIES = ("capture", "baseline", "candidate", "pace", "repeats", "seed")
"""Fields of `Setting` that are properties of the suite, beside the verdict and its reason."""
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

    Only the deciding metric can fail or be skipped, so the suite fails exactly if the command does. The figures of the
    other metrics are their output.
    """
    inconclusive_fails = inconclusive_fails or result.stopped
    setting = result.setting
    # The runs of a record were another day's.
    runs = [run for run in result.runs if result.against is None or run.side == "candidate"]
    elapsed = sum(run.metrics.get("total_s", run.metrics.get("elapsed_s", 0.0)) for run in runs)
    names = [*([] if result.primary in result.metrics else [result.primary]), *result.metrics]
    cases = [_case(result, name, elapsed, inconclusive_fails) for name in names]
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "time": f"{elapsed:.3f}",
    }
    skipped = str(sum(case.find("skipped") is not None for case in cases))
    root = xml.Element("testsuites", {"name": _SUITE, **counts})
    name = f"{setting.capture}: {setting.candidate} against {result.compared_with}"
    suite = xml.SubElement(root, "testsuite", {"name": _text(name), **counts, "skipped": skipped})
    properties = xml.SubElement(suite, "properties")
    said = {"headline": result.headline, "storage": result.storage}
    said |= {"verdict": result.verdict.value, "reason": result.reason}
    said |= {key: str(getattr(setting, key)) for key in _PROPERTIES}
    for key, value in said.items():
        xml.SubElement(properties, "property", {"name": key, "value": _text(value)})
    suite.extend(cases)
    notes = [*result.health.obstacles, *result.health.warnings]
    if notes:
        xml.SubElement(suite, "system-out").text = _text("\n".join(notes))
    xml.indent(root)
    document: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _case(result: Regression, name: str, elapsed_s: float, inconclusive_fails: bool) -> xml.Element:
    decides = name == result.primary
    metric = result.metrics.get(name)
    kind = "verdict" if decides else "informational"
    case = xml.Element(
        "testcase",
        {"classname": f"dxt-replay.regress.{kind}", "name": name, "time": f"{elapsed_s if decides else 0:.3f}"},
    )
    figures = "nothing to compare" if metric is None else _figures(metric)
    if decides and result.verdict is Verdict.REGRESSION:
        failure = xml.SubElement(case, "failure", {"message": _text(result.reason), "type": "regression"})
        failure.text = _text(figures)
    elif decides and result.verdict is Verdict.INCONCLUSIVE:
        tag = "failure" if inconclusive_fails else "skipped"
        kind_of = {"type": "inconclusive"} if inconclusive_fails else {}
        xml.SubElement(case, tag, {"message": _text(result.reason), **kind_of}).text = _text(figures)
    else:
        xml.SubElement(case, "system-out").text = _text(figures)
    return case


def _figures(metric: MetricComparison) -> str:
    found, unit = metric.found, unit_of(metric.name)
    interval = "unknown" if found.low is None or found.high is None else f"{found.low:.4f} to {found.high:.4f}"
    return "\n".join(
        (
            f"{metric.judgement.verdict.value}: {metric.judgement.reason}",
            f"ratio {found.ratio:.4f}, interval {interval}, p {found.p_value:.4g} (adjusted {metric.p_adjusted:.4g})",
            f"baseline ({unit}): {', '.join(f'{value:.6g}' for value in metric.baseline)}",
            f"candidate ({unit}): {', '.join(f'{value:.6g}' for value in metric.candidate)}",
        )
    )


def _text(text: str) -> str:
    """`text` with what no XML document can hold written as an escape."""
    return _NO_XML.sub(lambda found: escaped(found[0]), text)
