"""How right are forecasts of published results? One job, measured by its owner on one system, is forecast on another
number of ranks or accelerator by what its other results show.

    python -m benchmarks.mlperf [--work DIR] [CASE ...]

`cases.json` has the configurations and times of public results (mlcommons/storage_results_v1.0 and v3.0; each case
names its source): [least, median, greatest] over the epochs after the first one of all runs. The storage model is what
`calibrate --target RESULTS` makes of the given results. A case is generated with fewer steps, unless its storage limits
it, and simulated; its epoch is first step + (steps - 1) * mean of the later ones. No time of the forecast case is used,
except where the row says so.
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
from dxt_replay.replay.calibration.published import AT_LEAST_PCT, Published, steps_of
from dxt_replay.workloads.files import record_length
from dxt_replay.workloads.values import workload_from_values

CASES: Mapping[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
STEPS = {"unet3d": 60, "resnet50": 24, "cosmoflow": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A row of the table: the case, the cases whose times are used, and by how much the epoch may be off, %."""

    case: str
    given: tuple[str, ...]
    allowed_pct: float = 3

    @property
    def at_least(self) -> bool:
        """Whether the given results show too little for more than a lower bound: their ranks hardly waited, and the
        case has more ranks."""
        most = max((CASES[name] for name in self.given), key=lambda case: int(case["ranks"]))
        return bool(most["au"][1] > AT_LEAST_PCT and CASES[self.case]["ranks"] > most["ranks"])


FORECASTS = (
    Forecast(case="f8000x_resnet50_h100_n106", given=("f8000x_resnet50_h100_n1", "f8000x_resnet50_h100_n32")),
    Forecast(case="f8000x_resnet50_h100_n32", given=("f8000x_resnet50_h100_n1",)),
    Forecast(case="juicefs_cosmoflow_h100_n10", given=("juicefs_cosmoflow_h100_n1",), allowed_pct=10),
    Forecast(case="f8000x_unet3d_h100_n12", given=("f8000x_unet3d_h100_n1", "f8000x_unet3d_h100_n8")),
    Forecast(case="f8000x_unet3d_h100_n8", given=("f8000x_unet3d_h100_n1",)),
    Forecast(case="micron9550_unet3d_h100_n4", given=("micron9550_unet3d_a100_n8",)),
    Forecast(case="mango_sw_unet3d_h100_n5", given=("mango_sw_unet3d_a100_n15",)),
    Forecast(case="e1000_unet3d_h100_n15", given=("e1000_unet3d_h100_n15",), allowed_pct=1),
)
LOAD, STREAM = "alluxio_llama3_8b_save_load", "0.18GB/s"
"""A case of checkpoints, and what its log printed of one reader: "0.16 to 0.20"."""


def model_of(given: tuple[str, ...]) -> dict[str, Any]:
    """The storage model that the given cases show, as `calibrate --target` writes it."""
    cases = sorted((CASES[name] for name in given), key=lambda case: int(case["ranks"]))
    workloads = [workload_from_values(case["config"])[0] for case in cases]
    found = [
        steps_of(
            workload, case["ranks"], [case["block_s"][1]], [case["au"][1] / 100],
            hosts=case["hosts"], processors=case["processors"],
        )
        for workload, case in zip(workloads, cases, strict=True)
    ]  # fmt: skip
    first, record = workloads[0], record_length(workloads[0].dataset)
    return Published(
        workload=given[0],
        compute_ms=1e3 * first.train.computation_time.mean_s,
        batch_bytes=first.reader.batch_size * record,
        record_bytes=record,
        by_ranks=tuple(found),
        left_out={},
    ).document()


def simulated(config: Mapping[str, Any], ranks: int, model: Mapping[str, Any], work: Path) -> Any:
    """The prediction of a job on a storage."""
    (work / "job.yaml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    (work / "model.yaml").write_text(yaml.safe_dump(dict(model)), encoding="utf-8")
    dxt_replay.generate(work / "job.yaml", ranks, work / "job.capture", force=True)
    return dxt_replay.simulate(work / "job.capture", work / "model.yaml").prediction


def forecast_s(case: Mapping[str, Any], model: Mapping[str, Any], work: Path) -> tuple[float, float]:
    """First step and mean of the later ones of a case on a storage."""
    config, ranks = json.loads(json.dumps(case["config"])), case["ranks"]
    steps = case["steps"] if "limits" in model else min(case["steps"], STEPS[config["model"]])
    config["dataset"]["num_files_train"] = math.ceil(
        steps * ranks * config["reader"]["batch_size"] / config["dataset"]["num_samples_per_file"]
    )
    config["train"]["epochs"] = 1
    config["workflow"]["checkpoint"] = False
    steps_ms = [each.total for each in simulated(config, ranks, model, work).steps()]
    return steps_ms[0] / 1e3, sum(steps_ms[1:]) / len(steps_ms[1:]) / 1e3


def row(each: Forecast, work: Path) -> str:
    """A row of the table in Markdown."""
    case, model = CASES[each.case], model_of(each.given)
    first_s, later_s = forecast_s(case, model, work)
    least, true_s, most = case["block_s"]
    epoch_s = first_s + (case["steps"] - 1) * later_s
    error, first_error = 100 * (epoch_s / true_s - 1), 100 * (first_s / case["first_step_s"][1] - 1)
    mark = "" if abs(error) <= each.allowed_pct else f" (asked {each.allowed_pct:g})"
    client = model.get("client", {})
    used = [
        *(["rate"] if "limits" in model else []),
        *(["step, meeting"] if "step" in client else []),
        *(["reader"] if "sample" in client else []),
    ]
    computes_s = float(case["config"]["train"]["computation_time"])
    return (
        f"| {each.case} | {', '.join(each.given)}: {', '.join(used)} "
        f"| {true_s:.1f} ({least:.1f} to {most:.1f}) | {'at least ' * each.at_least}{epoch_s:.1f} "
        f"| {error:+.1f} %{mark} | {case['au'][1]:.1f}, {100 * computes_s / later_s:.1f} "
        f"| {case['first_step_s'][1]:.2f}, {first_s:.2f} ({first_error:+.0f} %) |"
    )


def load_row(work: Path) -> str:
    """The load of a checkpoint by four readers of a rank, each with the bandwidth that one of them had."""
    case = CASES[LOAD]
    config = json.loads(json.dumps(case["config"]))
    config["checkpoint"] |= {"num_checkpoints_write": 1, "num_checkpoints_read": 1}
    model = {"storage_model": 1, "name": LOAD, "operations": {"read": {"latency": "0us", "bandwidth": STREAM}}}
    load_s = simulated(config, 8, model, work).spent_s().checkpoints
    loads = sorted(case["load_rank0_s"] + case["load_rank1_s"])
    true_s = sum(loads) / len(loads)
    return (
        f"| {LOAD}, a load | its own log: {STREAM} of a reader | {true_s:.1f} ({loads[0]:.1f} to {loads[-1]:.1f}) "
        f"| {load_s:.1f} | {100 * (load_s / true_s - 1):+.1f} % | | |"
    )


HEAD = """\
| forecast | from | epoch, true (least to greatest) s | forecast s | error | utilisation, true, forecast % \
| first step, true, forecast s |
|---|---|---|---|---|---|---|"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="folder for generated captures; temporary by default")
    parser.add_argument("cases", nargs="*", help="rows to make; all by default")
    chosen = parser.parse_args()
    print(HEAD)
    with tempfile.TemporaryDirectory(dir=chosen.work) as folder:
        for each in FORECASTS:
            if not chosen.cases or each.case in chosen.cases:
                print(row(each, Path(folder)), flush=True)
        if not chosen.cases or LOAD in chosen.cases:
            print(load_row(Path(folder)), flush=True)
