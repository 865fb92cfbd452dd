"""How right are forecasts of published results? One job, measured by its owner on one system, is forecast on another
number of ranks or accelerator by what its other results show.

    python -m benchmarks.mlperf [--work DIR]

`cases.json` has the configurations and times of public results (mlcommons/storage_results_v1.0 and v3.0; each case
names its source): [least, median, greatest] over the epochs after the first one of all runs. A case is generated with
fewer steps, unless its storage limits it, and simulated; its epoch is first step + (steps - 1) * mean of the later
ones. No time of the forecast case is used, except where the row says so.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import dxt_replay

CASES: Mapping[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
STEPS = {"unet3d": 60, "resnet50": 24, "cosmoflow": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A row of the table: the case, the cases whose times are used, and by how much the epoch may be off, %."""

    case: str
    given: tuple[str, ...]
    allowed_pct: float
    rate: bool = False


FORECASTS = (
    Forecast(
        case="f8000x_resnet50_h100_n106", given=("f8000x_resnet50_h100_n1", "f8000x_resnet50_h100_n32"), allowed_pct=3
    ),
    Forecast(case="f8000x_resnet50_h100_n32", given=("f8000x_resnet50_h100_n1",), allowed_pct=10),
    Forecast(case="juicefs_cosmoflow_h100_n10", given=("juicefs_cosmoflow_h100_n1",), allowed_pct=10),
    Forecast(case="f8000x_unet3d_h100_n12", given=("f8000x_unet3d_h100_n1", "f8000x_unet3d_h100_n8"), allowed_pct=3),
    Forecast(case="f8000x_unet3d_h100_n8", given=("f8000x_unet3d_h100_n1",), allowed_pct=3),
    Forecast(case="micron9550_unet3d_h100_n4", given=("micron9550_unet3d_a100_n8",), allowed_pct=3, rate=True),
    Forecast(case="mango_sw_unet3d_h100_n5", given=("mango_sw_unet3d_a100_n15",), allowed_pct=3, rate=True),
    Forecast(case="e1000_unet3d_h100_n15", given=("e1000_unet3d_h100_n15",), allowed_pct=1),
)


def compute_s(case: Mapping[str, Any]) -> float:
    return float(case["config"]["train"]["computation_time"])


def bounds(case: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes/s of later steps, and of the readers of the first step."""
    reader, data = case["config"]["reader"], case["config"]["dataset"]
    batch = case["ranks"] * reader["batch_size"] * data["record_length"]
    return batch / case["later_step_s"][1], batch * reader["read_threads"] / case["first_step_s"][1]


def model_of(forecast: Forecast) -> dict[str, Any]:
    """The storage model that the given cases show."""
    given = sorted((CASES[name] for name in forecast.given), key=lambda case: case["ranks"])
    cost_s = {case["ranks"]: case["later_step_s"][1] - compute_s(case) for case in given}
    least = min(cost_s.values()) if not forecast.rate else 0.0
    model: dict[str, Any] = {"storage_model": 1, "name": forecast.given[0]}
    if forecast.rate:
        rate = max(bounds(given[0]))
        model["limits"] = [{"name": "rate", "each": "system", "of": ["read"], "rate": f"{rate!r}B/s"}]
    else:
        meeting = {ranks: f"{(cost - least) * 1e3!r}ms" for ranks, cost in cost_s.items()}
        model["client"] = {"step": f"{least * 1e3!r}ms", "meeting": meeting}
    return model


def forecast_s(case: Mapping[str, Any], model: Mapping[str, Any], work: Path) -> tuple[float, float]:
    """First step and mean of the later ones of a case on a storage."""
    config, ranks = json.loads(json.dumps(case["config"])), case["ranks"]
    steps = case["steps"] if "limits" in model else min(case["steps"], STEPS[config["model"]])
    config["dataset"]["num_files_train"] = math.ceil(
        steps * ranks * config["reader"]["batch_size"] / config["dataset"]["num_samples_per_file"]
    )
    config["train"]["epochs"] = 1
    config["workflow"]["checkpoint"] = False
    (work / "job.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (work / "model.yaml").write_text(yaml.safe_dump(dict(model)), encoding="utf-8")
    dxt_replay.generate(work / "job.yaml", ranks, work / "job.capture", force=True)
    found = dxt_replay.simulate(work / "job.capture", work / "model.yaml").prediction
    steps_ms = [each.total for each in found.steps()]
    return steps_ms[0] / 1e3, sum(steps_ms[1:]) / len(steps_ms[1:]) / 1e3


def table(work: Path) -> list[str]:
    """The rows of the table in Markdown."""
    lines = [
        "| forecast | from | epoch, true (least to greatest) s | forecast s | error "
        "| utilisation, true, forecast % | first step, true, forecast s |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in FORECASTS:
        case = CASES[each.case]
        first_s, later_s = forecast_s(case, model_of(each), work)
        least, true_s, most = case["block_s"]
        epoch_s = first_s + (case["steps"] - 1) * later_s
        error = 100 * (epoch_s / true_s - 1)
        mark = "" if abs(error) <= each.allowed_pct else f" (asked {each.allowed_pct:g})"
        lines.append(
            f"| {each.case} | {', '.join(each.given)}{', its rate' if each.rate else ', cost of a step'} "
            f"| {true_s:.1f} ({least:.1f} to {most:.1f}) | {epoch_s:.1f} | {error:+.1f} %{mark} "
            f"| {case['au'][1]:.1f}, {100 * compute_s(case) / later_s:.1f} "
            f"| {case['first_step_s'][1]:.2f}, {first_s:.2f} |"
        )
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="folder for generated captures; temporary by default")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.work) as folder:
        print("\n".join(table(Path(folder))))
