"""What each of Figures 9 to 15 varies, its workload and means, and what the paper prints of it.

A point of a sweep is either written into the workload (DLIO's own keys, a list) or made of the base's capture by a
transformation (its options, a dict). If both can express a point, it is transformed, which is the harder test.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HERE = Path(__file__).parent
STORAGE = "theta_lustre"
"""The shipped model of a file system like the paper's."""
UNCACHED = str(HERE / "lustre_without_cache.yaml")
"""The same model with every request going to the servers."""
Change = Callable[[str], list[str] | dict[str, Any]]


class Sweep(NamedTuple):
    """One panel. workload: a file of workloads/, or a shipped name. base_at: the base of the gains. change: the meaning
    of a point. overrides: those of all points. printed: what the paper says. fitted_to: job times of the authors'
    notebooks from which the assumed times were chosen."""

    workload: str
    varies: str
    points: tuple[str, ...]
    base_at: str
    change: Change
    printed: str
    fitted_to: str = "nothing"
    overrides: tuple[str, ...] = ()
    ranks: int = 8
    storage: str = STORAGE

    @property
    def source(self) -> str | Path:
        """The workload's file, or its name where it is a shipped one."""
        path = HERE / "workloads" / f"{self.workload}.yaml"
        return path if path.exists() else self.workload


def _powers(first: int, last: int) -> tuple[str, ...]:
    """The powers of two from `first` to `last`, as text."""
    return tuple(str(1 << bit) for bit in range(first.bit_length() - 1, last.bit_length()))


def _option(name: str) -> Change:
    return lambda at: {name: int(at)}


def _chunk(at: str) -> list[str]:
    return [f"dataset.chunk_size={at}"]


def _shuffled_chunk(at: str) -> dict[str, Any]:
    return {} if at == str(64 * KIB) else {"chunk": 8 * int(at)}


def _preprocessing(sample_s: float) -> Change:
    """`at` threads share the time that one of them spends on a sample."""
    return lambda at: [f"reader.preprocess_time={sample_s / int(at)}"]


def _compression(lzf: float, *gzip: float) -> Change:
    """Stored bytes per byte as printed in the notebooks, of lzf and of the levels of gzip."""
    ratios = {"lzf": lzf} | {f"gzip {level}": ratio for level, ratio in enumerate(gzip)}
    return lambda at: {} if at == "none" else {"compression": f"{at.split()[0]}:{ratios[at]}"}


RECORDS = ("dataset.format=hdf5",)
"""Panels b and c of Figures 9 and 10: the same records in contiguous HDF5 files, which tf.data reads one by one, and
whose readers preprocess what they read. TFRecord files are read by up to three times the readers."""

COMPRESSIONS = ("none", "lzf", *(f"gzip {level}" for level in range(10)))
COSMIC = _compression(0.630, 1.0, 0.595, 0.595, 0.595, *[0.591] * 6)
FFN = _compression(0.900, 1.0, 0.846, 0.846, 0.846, *[0.841] * 6)
LARGE = "job time with large chunks"
SHUFFLED = ("dataset.chunk_size=65536", "reader.sample_shuffle=seed")
# The paper's applications of Figure 13 on 32 ranks instead of 512, with a share of the data.
REAL_FLOW = ("dataset.num_files_train=64", "train.epochs=1")
REAL_COSMIC = ("train.total_training_steps=10",)
SIZES, THREADS = _powers(64 * KIB, 16 * MIB), _powers(1, 64)
K4, K64, K256, M1 = (str(size) for size in (4 * KIB, 64 * KIB, 256 * KIB, MIB))

SWEEPS: Mapping[str, Sweep] = {
    "9a": Sweep(
        "imagenet", "transfer size, B", SIZES, K256, _option("transfer_size"),
        "best at 1 MB (2 GB/s), 1.25x over 256 KB, falls beyond", "46 s of 9b with 1 reader, 37 s with 16"),
    "9b": Sweep(
        "imagenet", "readers", THREADS, "1", _option("readers"), "best at 8 readers, 1.2x over 1",
        "46 s with 1 reader, 37 s with 16", RECORDS),
    "9c": Sweep(
        "imagenet", "preprocessing threads", THREADS, "1", _preprocessing(0.00195),
        "flat from 8 preprocessing threads, 66 % over 1", "65 s with 1 thread",
        (*RECORDS, "reader.preprocess_time=0.00195")),
    "10a": Sweep(
        "cosmoflow", "transfer size, B", SIZES, K256, _option("transfer_size"),
        "best at 1 MB (1.8 GB/s), 1.32x over 256 KB", "160 s of 10b with 1 reader, 127 s with 16"),
    "10b": Sweep(
        "cosmoflow", "readers", THREADS, "1", _option("readers"), "best at 8 readers, 1.2x over 1",
        "160 s with 1 reader, 127 s with 16", RECORDS),
    "10c": Sweep(
        "cosmoflow", "preprocessing threads", THREADS, "1", _preprocessing(0.00117),
        "flat from 8 preprocessing threads, 4 % over 1", "159 s with 1 thread, 142 s with 64",
        (*RECORDS, "reader.preprocess_time=0.00117", "train.computation_time=0.55")),
    "11a": Sweep(
        "cosmic_tagger", "chunk size", _powers(KIB, 32 * MIB), K4, _chunk, 'jump at 64 KB, then constant; "almost 96x"',
        LARGE, storage=UNCACHED),
    "11b": Sweep(
        "cosmic_tagger", "compression", COMPRESSIONS, "none", COSMIC, "gzip 4 best, 1.35x over no compression",
        LARGE, storage=UNCACHED),
    "11c": Sweep(
        "cosmic_tagger", "chunk size, shuffled", _powers(64 * KIB, 4 * MIB), K64, _shuffled_chunk,
        "set larger than memory, shuffled: above 64 KB slower, 6.7x at 4 MB", LARGE, SHUFFLED, storage=UNCACHED),
    "12a": Sweep(
        "ffn", "chunk size", _powers(KIB, 16 * MIB), K4, _chunk, "text: jump at 32 KB; caption: 128 KB; 96x",
        LARGE, storage=UNCACHED),
    "12b": Sweep(
        "ffn", "compression", COMPRESSIONS, "none", FFN, "gzip 4 (or 5) best, 1.35x over no compression",
        LARGE, storage=UNCACHED),
    "13a": Sweep(
        "paper_cosmoflow", "CosmoFlow: transfer size, B", (K256, M1), K256, _option("transfer_size"),
        "1 MB transfers 1.33x over 256 KB", overrides=REAL_FLOW, ranks=32),
    "13b": Sweep(
        "paper_cosmoflow", "CosmoFlow: readers", ("4", "8"), "4", _option("readers"), "8 readers 12 % over 4",
        overrides=REAL_FLOW, ranks=32),
    "13d": Sweep(
        "paper_cosmic_tagger", "Cosmic Tagger: chunk size", (K4, M1), K4, _chunk, "chunks of 1 MB 8x over 4 KB",
        overrides=REAL_COSMIC, ranks=32, storage=UNCACHED),
    "13e": Sweep(
        "paper_cosmic_tagger", "Cosmic Tagger: compression", ("none", "gzip 4"), "none", COSMIC,
        "gzip 4 1.35x over no compression", overrides=(*REAL_COSMIC, "dataset.chunk_size=4096"), ranks=32,
        storage=UNCACHED),
}  # fmt: skip

NODES, RANKS_PER_NODE = (128, 256, 512, 1024, 2048), 4
SCALED = {
    "14": "Imagenet, CosmoFlow, FRNN (many files): time falls with nodes, (sub)linearly",
    "15": "Cosmic Tagger, FFN, CANDLE (shared file): falls less than ideal at scale, for metadata reads",
}
"""Figures of more and more nodes, and what is printed of them.

The paper divides the data equally up to 8,192 ranks, which its own numbers of files and samples do not allow: 1,024
files cannot be shared among 8,192 ranks, and batches of 32 leave no step. So the data set of each application is cut
into more, smaller files, or its batches into single samples, with the bytes and the compute of all ranks as printed.
"""

_SHARED = ("reader.batch_size=1", "train.epochs=1")
_WHOLE = "train.total_training_steps=-1"
APPLICATIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Imagenet": (
        "14", "paper_imagenet", ("dataset.num_files_train=8192", "dataset.num_samples_per_file=32", _WHOLE)),
    "CosmoFlow": (
        "14", "paper_cosmoflow", ("dataset.num_files_train=8192", "dataset.num_samples_per_file=1", "train.epochs=1")),
    "FRNN": (
        "14", "paper_frnn",
        ("dataset.num_files_train=16384", "dataset.record_length_bytes=358400", "train.computation_time=0.0205")),
    "Cosmic Tagger": (
        "15", "paper_cosmic_tagger",
        ("dataset.num_samples_per_file=16384", *_SHARED, _WHOLE, "train.computation_time=0.1725")),
    "FFN": (
        "15", "paper_ffn", ("dataset.num_samples_per_file=16384", *_SHARED, _WHOLE, "train.computation_time=0.0242")),
    "CANDLE": (
        "15", "paper_candle",
        ("dataset.num_samples_per_file=8192", "dataset.record_dims=[128]", *_SHARED, "train.computation_time=5.8")),
}  # fmt: skip
"""By the paper's name: figure, shipped workload, and how its data are divided."""


class PagePoint(NamedTuple):
    """One run of a sweep as its notebook printed it: whole seconds of the job; io_s, the sum of the durations of a
    rank's operations, mean over ranks, in which VaniDL counted an operation below 0.1 ms as 1 ms; GiB and reads of all
    ranks."""

    job_s: float
    io_s: float
    gib: float
    reads: int


def sweep_pages() -> dict[str, dict[str, PagePoint]]:
    """The authors' notebooks (github.com/hariharan-devarajan/vanidl, commit 8bad713), runs of DLIO on 8 ranks of Theta:
    by figure and point. Reads are the printed bytes divided by the printed mean, good to about 3 digits."""
    found: dict[str, dict[str, PagePoint]] = {}
    with (HERE / "sweep_pages.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            gib = float(row["gib"])
            point = PagePoint(float(row["job_s"]), float(row["io_s"]), gib, round(gib * GIB / int(row["mean_bytes"])))
            found.setdefault(row["figure"], {})[row["at"]] = point
    return found
