"""Figures 14 and 15: the same data on more and more nodes, on a file system like the paper's.

The paper divides the data equally up to 8,192 ranks, which its own numbers of files and samples do not allow: 1,024
files cannot be shared among 8,192 ranks, and batches of 32 leave no step. So the data set of each application is
cut into more, smaller files, or its batches into single samples, with the bytes and the compute of all ranks as
printed. What a step reads and computes is as printed; there are fewer steps (at 2,048 nodes one or two).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dxt_replay
from benchmarks.paper_figures.measured import Outcome, simulated
from benchmarks.paper_figures.optimum import falls_like
from benchmarks.paper_figures.tables import aligned

NODES = (128, 256, 512, 1024, 2048)
RANKS_PER_NODE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application of Figure 14 or 15: a shipped workload, and how its data are divided."""

    figure: str
    workload: str
    overrides: tuple[str, ...]


APPLICATIONS: Mapping[str, Application] = {
    "Imagenet": Application(
        figure="14",
        workload="paper_imagenet",
        overrides=("dataset.num_files_train=8192", "dataset.num_samples_per_file=32", "train.total_training_steps=-1"),
    ),
    "CosmoFlow": Application(
        figure="14",
        workload="paper_cosmoflow",
        overrides=("dataset.num_files_train=8192", "dataset.num_samples_per_file=1", "train.epochs=1"),
    ),
    "FRNN": Application(
        figure="14",
        workload="paper_frnn",
        overrides=(
            "dataset.num_files_train=16384",
            "dataset.record_length_bytes=358400",
            "train.computation_time=0.0205",
        ),
    ),
    "Cosmic Tagger": Application(
        figure="15",
        workload="paper_cosmic_tagger",
        overrides=(
            "dataset.num_samples_per_file=16384",
            "reader.batch_size=1",
            "train.epochs=1",
            "train.total_training_steps=-1",
            "train.computation_time=0.1725",
        ),
    ),
    "FFN": Application(
        figure="15",
        workload="paper_ffn",
        overrides=(
            "dataset.num_samples_per_file=16384",
            "reader.batch_size=1",
            "train.epochs=1",
            "train.total_training_steps=-1",
            "train.computation_time=0.0242",
        ),
    ),
    "CANDLE": Application(
        figure="15",
        workload="paper_candle",
        overrides=(
            "dataset.num_samples_per_file=8192",
            "dataset.record_dims=[128]",
            "reader.batch_size=1",
            "train.epochs=1",
            "train.computation_time=5.8",
        ),
    ),
}
"""By the paper's name."""


def scaling(name: str, folder: Path, storage: str | Path, nodes: Sequence[int] = NODES) -> list[Outcome]:
    """An application on each number of nodes, with the same data."""
    found = []
    capture = folder / "scaled.capture"
    for count in nodes:
        application = APPLICATIONS[name]
        dxt_replay.generate(
            application.workload,
            count * RANKS_PER_NODE,
            capture,
            overrides=application.overrides,
            workers=2,
            force=True,
        )
        found.append(simulated(capture, str(count), storage))
    return found


def scaling_table(found: Sequence[Outcome]) -> str:
    """A line for each number of nodes. efficiency: of the ideal speed-up over the first."""
    ranks = [int(each.at) * RANKS_PER_NODE for each in found]
    efficiency = falls_like(ranks, [each.elapsed_s for each in found])
    rows = [["nodes", "ranks", "elapsed s", "ideal s", "efficiency", "storage costs s", "reads", "GiB read"]]
    for each, count, share in zip(found, ranks, efficiency, strict=True):
        ideal = found[0].elapsed_s * ranks[0] / count
        rows.append(
            [
                each.at,
                f"{count:,}",
                f"{each.elapsed_s:.3f}",
                f"{ideal:.3f}",
                f"{share:.2f}",
                f"{each.stored_s:.3f}",
                f"{each.reads:,}",
                f"{each.gib:.2f}",
            ]
        )
    return aligned(rows)


def write_plot(figure: str, curves: Mapping[str, Sequence[Outcome]], path: Path) -> None:
    """Elapsed time over nodes, both logarithmic, with the ideal of each application as a dotted line."""
    import plotly.graph_objects as go

    plot = go.Figure()
    for name, found in curves.items():
        nodes, elapsed = [int(each.at) for each in found], [each.elapsed_s for each in found]
        plot.add_scatter(x=nodes, y=elapsed, mode="lines+markers", name=name)
        ideal = [elapsed[0] * nodes[0] / count for count in nodes]
        plot.add_scatter(x=nodes, y=ideal, mode="lines", line={"dash": "dot"}, name=f"{name}, ideal")
    plot.update_layout(
        title=f"Figure {figure}: time of the same data on more nodes, 4 ranks each (simulated)",
        xaxis={"title": "nodes", "type": "log", "tickvals": list(NODES)},
        yaxis={"title": "elapsed, s", "type": "log"},
    )
    plot.write_html(path, include_plotlyjs="cdn")
