"""The parameter that each of Figures 9 to 13 varies, its workload, and the means.

A point is either written into the workload (`overrides`, DLIO's own keys) or made of the base's capture by a
transformation (`transform`). If both can express a point, it is transformed, which is the harder test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
HERE = Path(__file__).parent
WORKLOADS = HERE / "workloads"
STORAGE = "theta_lustre"
"""The shipped model of a file system like the paper's."""
UNCACHED = HERE / "lustre_without_cache.yaml"
"""The same model with every request going to the servers."""
RANKS = 8
"""Ranks of the sweep pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a point differs from its base: DLIO's keys for generating, options of a transformation."""

    overrides: tuple[str, ...] = ()
    transform: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One panel of a figure.

    workload: a file of WORKLOADS, or a shipped name. varies: what, for the table's head. points: the values, in order.
    base_at: the base of the gains.
    change: the meaning of a value.
    overrides: those of all points.
    storage: the model for the simulation.
    fitted_to: job times of the pages, from which the assumed times were chosen.
    """

    figure: str
    workload: str
    varies: str
    points: tuple[str, ...]
    base_at: str
    change: Callable[[str], Change]
    overrides: tuple[str, ...] = ()
    ranks: int = RANKS
    storage: str | Path = STORAGE
    fitted_to: str = ""

    @property
    def source(self) -> str | Path:
        """The workload's file, or its name where it is a shipped one."""
        path = WORKLOADS / f"{self.workload}.yaml"
        return path if path.exists() else self.workload


def _powers(first: int, last: int) -> tuple[str, ...]:
    """The powers of two from `first` to `last`, as text."""
    return tuple(str(1 << bit) for bit in range(first.bit_length() - 1, last.bit_length()))


def _transfer_size(at: str) -> Change:
    return Change(transform={"transfer_size": int(at)})


def _readers(at: str) -> Change:
    return Change(transform={"readers": int(at)})


def _chunk(at: str) -> Change:
    return Change(overrides=(f"dataset.chunk_size={at}",))


def _preprocessing(sample_s: float) -> Callable[[str], Change]:
    """`at` threads share the time that one of them spends on a sample."""
    return lambda at: Change(overrides=(f"reader.preprocess_time={sample_s / int(at)}",))


def _compression(ratios: Mapping[str, float]) -> Callable[[str], Change]:
    return lambda at: Change(transform={} if at == "none" else {"compression": f"{at.split()[0]}:{ratios[at]}"})


def _stored(lzf: float, *gzip: float) -> dict[str, float]:
    """Stored bytes per byte as printed on the pages, by name of the compression."""
    return {"lzf": lzf} | {f"gzip {level}": ratio for level, ratio in enumerate(gzip)}


RECORDS = ("dataset.format=hdf5",)
"""Panels b and c: the same records in contiguous HDF5 files, which tf.data reads one by one, and whose readers
preprocess what they read. TFRecord files are read in requests of the transfer size by up to three times the readers."""

LARGE_CHUNKS = "job time with large chunks"

COSMIC_STORED = _stored(0.630, 1.0, 0.595, 0.595, 0.595, 0.591, 0.591, 0.591, 0.591, 0.591, 0.591)
FFN_STORED = _stored(0.900, 1.0, 0.846, 0.846, 0.846, 0.841, 0.841, 0.841, 0.841, 0.841, 0.841)
REAL_COSMOFLOW = ("dataset.num_files_train=64", "train.epochs=1")
"""The paper's applications of Figure 13 on 32 ranks instead of 512, with a share of the data."""
REAL_COSMIC = ("train.total_training_steps=10",)
COMPRESSIONS = ("none", *COSMIC_STORED)


def _reading(
    figure: str, workload: str, fitted_to: tuple[str, str], sample_s: float, *overrides: str
) -> tuple[Sweep, ...]:
    """Panels a to c of Figures 9 and 10.

    fitted_to: of a and b, and of c. sample_s: preprocessing of a sample in c. overrides: others of c.
    """
    return (
        Sweep(
            figure=f"{figure}a",
            workload=workload,
            varies="transfer size, B",
            points=_powers(64 * KIB, 16 * MIB),
            base_at=str(256 * KIB),
            change=_transfer_size,
            fitted_to=fitted_to[0],
        ),
        Sweep(
            figure=f"{figure}b",
            workload=workload,
            varies="readers",
            points=_powers(1, 64),
            base_at="1",
            change=_readers,
            overrides=RECORDS,
            fitted_to=fitted_to[0],
        ),
        Sweep(
            figure=f"{figure}c",
            workload=workload,
            varies="preprocessing threads",
            points=_powers(1, 64),
            base_at="1",
            change=_preprocessing(sample_s),
            overrides=(*RECORDS, f"reader.preprocess_time={sample_s}", *overrides),
            fitted_to=fitted_to[1],
        ),
    )


SWEEPS: Mapping[str, Sweep] = {
    sweep.figure: sweep
    for sweep in (
        *_reading(
            "9",
            "imagenet",
            ("46 s of 9b with 1 reader, 37 s with 16", "65 s with 1 thread"),
            0.00195,
        ),
        *_reading(
            "10",
            "cosmoflow",
            ("160 s of 10b with 1 reader, 127 s with 16", "159 s with 1 thread, 142 s with 64"),
            0.00117,
            "train.computation_time=0.55",
        ),
        Sweep(
            figure="11a",
            workload="cosmic_tagger",
            varies="chunk size",
            points=_powers(KIB, 32 * MIB),
            base_at=str(4 * KIB),
            change=_chunk,
            storage=UNCACHED,
            fitted_to=LARGE_CHUNKS,
        ),
        Sweep(
            figure="11b",
            workload="cosmic_tagger",
            varies="compression",
            points=COMPRESSIONS,
            base_at="none",
            change=_compression(COSMIC_STORED),
            storage=UNCACHED,
            fitted_to=LARGE_CHUNKS,
        ),
        Sweep(
            figure="11c",
            workload="cosmic_tagger",
            varies="chunk size, shuffled",
            points=_powers(64 * KIB, 4 * MIB),
            base_at=str(64 * KIB),
            change=lambda at: Change(transform={} if at == str(64 * KIB) else {"chunk": 8 * int(at)}),
            overrides=("dataset.chunk_size=65536", "reader.sample_shuffle=seed"),
            storage=UNCACHED,
            fitted_to=LARGE_CHUNKS,
        ),
        Sweep(
            figure="12a",
            workload="ffn",
            varies="chunk size",
            points=_powers(KIB, 16 * MIB),
            base_at=str(4 * KIB),
            change=_chunk,
            storage=UNCACHED,
            fitted_to=LARGE_CHUNKS,
        ),
        Sweep(
            figure="12b",
            workload="ffn",
            varies="compression",
            points=COMPRESSIONS,
            base_at="none",
            change=_compression(FFN_STORED),
            storage=UNCACHED,
            fitted_to=LARGE_CHUNKS,
        ),
        Sweep(
            figure="13a",
            workload="paper_cosmoflow",
            varies="CosmoFlow: transfer size, B",
            points=(str(256 * KIB), str(MIB)),
            base_at=str(256 * KIB),
            change=_transfer_size,
            overrides=REAL_COSMOFLOW,
            ranks=32,
        ),
        Sweep(
            figure="13b",
            workload="paper_cosmoflow",
            varies="CosmoFlow: readers",
            points=("4", "8"),
            base_at="4",
            change=_readers,
            overrides=REAL_COSMOFLOW,
            ranks=32,
        ),
        Sweep(
            figure="13d",
            workload="paper_cosmic_tagger",
            varies="Cosmic Tagger: chunk size",
            points=(str(4 * KIB), str(MIB)),
            base_at=str(4 * KIB),
            change=_chunk,
            overrides=REAL_COSMIC,
            ranks=32,
            storage=UNCACHED,
        ),
        Sweep(
            figure="13e",
            workload="paper_cosmic_tagger",
            varies="Cosmic Tagger: compression",
            points=("none", "gzip 4"),
            base_at="none",
            change=_compression(COSMIC_STORED),
            overrides=(*REAL_COSMIC, "dataset.chunk_size=4096"),
            ranks=32,
            storage=UNCACHED,
        ),
    )
}
"""By figure; Figures 14 and 15 are in `benchmarks.paper_figures.scaling`."""
