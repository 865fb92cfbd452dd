"""Every command that writes an output, with words for a small capture: tests plant things there, or fill the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.traces.samples import sample
from tests import fake_darshan
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCommand:
    """A command and one of its outputs.

    words: the command for a capture, whose staged twin is `twin` beside it, and an output.
    name: of the output. A folder in it is one in which the command keeps several results.
    is_file: whether --force replaces a file there. replaces: whether the command has --force at all.
    staged: whether it needs the twin. refused: its exit status where the output cannot be written.
    """

    words: Callable[[Path, Path], list[object]]
    name: str
    is_file: bool = False
    replaces: bool = True
    staged: bool = False
    refused: int = 2

    def line(self, capture: Path, out: Path, *options: object) -> list[object]:
        """The words with more options, which stand before the job of `record`."""
        name, *rest = self.words(capture, out)
        return [name, *options, *rest]


def _merge(_: Path, out: Path) -> list[object]:
    files = sample("imagenet")
    return ["merge", files.log, *(word for path in files.profiles for word in ("--profile", path)), "-o", out]


def _merge_each(capture: Path, out: Path) -> list[object]:
    """Two jobs, of which one becomes `out`."""
    folder = capture.parent / "logs"
    folder.mkdir(exist_ok=True)
    for name in (out.stem, "other"):
        reads = DxtRecord(record_id=7, reads=[(0, 100, 1.0, 1.5)])
        write_dxt_log(folder / f"{name}.darshan", [reads], names={7: b"/data/part"}, job=JobSpec(nprocs=1))
    return ["merge", "--each", folder, "-o", out.parent]


def _record(capture: Path, out: Path, *more: object) -> list[object]:
    """A job that the stand-in of Darshan takes for a Python program."""
    program, place = capture.parent / "python-job", capture.parent / "darshan"
    if not place.exists():
        place.mkdir()
        fake_darshan.build(place, fake_darshan.prepared_log(place / "prepared"))
        shutil.copy("/bin/true", program)
    options = more or ("-o", out, "--logs", capture.parent / "recorded")
    return ["record", "--library", place / "libdarshan.so", *options, "--", program]


def _regress(*option: str) -> Callable[[Path, Path], list[object]]:
    # Both sides are one directory. No noise of the machine makes one of them eleven times as slow.
    few = ("--repeats", "6", "--pace", "none", "--threshold", "1000")
    return lambda capture, out: [
        "regress", capture, capture.parent / "twin", *few, *option, out if option != ("-o",) else out.parent
    ]  # fmt: skip


def _capacity(capture: Path, out: Path) -> list[object]:
    few = ("--target", capture.parent, "--most", "1", "--utilisation", "1")
    small = ("dataset.record_length_bytes=2048", "dataset.record_length_bytes_stdev=0")
    return ["capacity", "unet3d_h100", *_SMALL, *small, *few, "-o", out.parent]


def _export(kind: str) -> Callable[[Path, Path], list[object]]:
    return lambda capture, out: ["export", capture, "--to", kind, "-o", out]


_SMALL = ("dataset.num_files_train=8", "train.epochs=1")

OUTPUT_COMMANDS = {
    "merge": OutputCommand(words=_merge, name="out.capture"),
    "merge --each": OutputCommand(words=_merge_each, name="out/job.capture", refused=1),
    "run": OutputCommand(
        words=lambda capture, out: ["run", capture, "--target", capture.parent / "twin", "--pace", "none", "-o", out],
        name="out.capture",
        staged=True,
    ),
    "generate": OutputCommand(
        words=lambda capture, out: ["generate", "unet3d_h100", "--ranks", "1", *_SMALL, "-o", out], name="out.capture"
    ),
    "transform": OutputCommand(
        words=lambda capture, out: ["transform", capture, "--transfer-size", "8KiB", "-o", out], name="out.capture"
    ),
    "anonymize": OutputCommand(words=lambda capture, out: ["anonymize", capture, "-o", out], name="out.capture"),
    "record": OutputCommand(words=_record, name="out.capture"),
    "record --logs": OutputCommand(
        words=lambda capture, out: _record(capture, out, "-o", capture.parent / "r.capture", "--logs", out),
        name="out",
    ),
    "report": OutputCommand(words=lambda capture, out: ["report", capture, "-o", out], name="out.html", is_file=True),
    "summary csv": OutputCommand(
        words=lambda capture, out: ["summary", capture, "--show", "files", "-o", out], name="out.csv", is_file=True
    ),
    "summary parquet": OutputCommand(
        words=lambda capture, out: ["summary", capture, "--show", "rank-files", "-o", out],
        name="out.parquet",
        is_file=True,
    ),
    "export darshan": OutputCommand(words=_export("darshan"), name="out.darshan", is_file=True),
    "export chrome": OutputCommand(words=_export("chrome"), name="out.json.gz", is_file=True),
    "export csv": OutputCommand(words=_export("csv"), name="out.csv", is_file=True),
    "export fio": OutputCommand(
        words=lambda capture, out: [*_export("fio")(capture, out), "--target", capture.parent / "twin"],
        name="out",
        staged=True,
    ),
    "calibrate": OutputCommand(
        words=lambda capture, out: ["calibrate", "--target", capture.parent, "--minutes", "0.018", "-o", out],
        name="out.json",
        is_file=True,
    ),
    "capacity": OutputCommand(words=_capacity, name="out/1-ranks.capture", replaces=False),
    "fit": OutputCommand(
        words=lambda capture, out: ["fit", capture, "-o", out],
        name="out.yaml",
        is_file=True,
    ),
    "regress": OutputCommand(words=_regress("-o"), name="out/pair-001-baseline.capture", staged=True),
    **{
        f"regress --report {kind}": OutputCommand(
            words=_regress("--report"), name=f"out.{kind}", is_file=True, staged=True
        )
        for kind in ("xml", "md", "html")
    },
    "regress --record": OutputCommand(words=_regress("--record"), name="out.json", is_file=True, staged=True),
    "demo": OutputCommand(words=lambda capture, out: ["demo", "-o", out], name="out", replaces=False),
}
"""Name -> command. `tests/test_output_commands.py` holds the names against the options of all commands."""
