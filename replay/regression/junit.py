"""The result as JUnit XML, for continuous integration: a test case a metric.

Elements and attributes are those of the schema that Jenkins' xUnit plug-in checks (junit-10.xsd), in its order.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections.abc import Mapping
from typing import Any

from dxt_replay.traces.text import escaped

_SUITE = "dxt-replay regress"
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


def junit_document(result: Mapping[str, Any], *, name: str, inconclusive_fails: bool) -> bytes:
    """UTF-8, from the JSON object of `dxt-replay regress`. `name`: what was compared.

    Only the deciding metric can fail or be skipped, so that the suite fails just when the command does; what became of
    the others is their output.
    """
    inconclusive_fails = inconclusive_fails or bool(result.get("stopped"))
    elapsed = sum(run["metrics"].get("total_s", run["metrics"].get("elapsed_s", 0.0)) for run in result["runs"])
    cases = [_case(result, metric, elapsed, inconclusive_fails) for metric in result["metrics"]]
    if result["primary"] not in result["metrics"]:
        cases.insert(0, _case(result, result["primary"], elapsed, inconclusive_fails))
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "time": f"{elapsed:.3f}",
    }
    skipped = str(sum(case.find("skipped") is not None for case in cases))
    root = xml.Element("testsuites", {"name": _SUITE, **counts})
    suite = xml.SubElement(root, "testsuite", {"name": _text(name), **counts, "skipped": skipped})
    properties = xml.SubElement(suite, "properties")
    for key in ("verdict", "reason", "capture", "baseline", "candidate", "pace", "repeats", "seed"):
        value = result.get(key)
        if value is not None:
            xml.SubElement(properties, "property", {"name": key, "value": _text(str(value))})
    suite.extend(cases)
    notes = [*result["obstacles"], *result["warnings"]]
    if notes:
        xml.SubElement(suite, "system-out").text = _text("\n".join(notes))
    xml.indent(root)
    document: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _case(result: Mapping[str, Any], name: str, elapsed_s: float, inconclusive_fails: bool) -> xml.Element:
    decides = name == result["primary"]
    metric = result["metrics"].get(name)
    kind = "verdict" if decides else "informational"
    case = xml.Element(
        "testcase",
        {"classname": f"dxt-replay.regress.{kind}", "name": name, "time": f"{elapsed_s if decides else 0:.3f}"},
    )
    figures = "nothing to compare" if metric is None else _figures(metric)
    if decides and result["verdict"] == "regression":
        failure = xml.SubElement(case, "failure", {"message": _text(result["reason"]), "type": "regression"})
        failure.text = _text(figures)
    elif decides and result["verdict"] == "inconclusive":
        tag = "failure" if inconclusive_fails else "skipped"
        kind_of = {"type": "inconclusive"} if inconclusive_fails else {}
        xml.SubElement(case, tag, {"message": _text(result["reason"]), **kind_of}).text = _text(figures)
    else:
        xml.SubElement(case, "system-out").text = _text(figures)
    return case


def _figures(metric: Mapping[str, Any]) -> str:
    return "\n".join(
        (
            f"{metric['verdict']}: {metric['reason']}",
            f"ratio {metric['ratio']:.4f}, interval {_interval(metric['ci'])}, p {metric['p_value']:.4g} "
            f"(adjusted {metric['p_adjusted']:.4g})",
            f"baseline ({metric['unit']}): {', '.join(f'{value:.6g}' for value in metric['baseline'])}",
            f"candidate ({metric['unit']}): {', '.join(f'{value:.6g}' for value in metric['candidate'])}",
        )
    )


def _interval(ci: list[float | None]) -> str:
    low, high = ci
    return "unknown" if low is None or high is None else f"{low:.4f} to {high:.4f}"


def _text(text: str) -> str:
    """`text` with what no XML document can hold written as an escape."""
    return _NO_XML.sub(lambda found: escaped(found[0]), text)
