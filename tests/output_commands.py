"""Every command that writes an output, with words for a small capture: tests plant things there, or fill the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dxt_replay.traces.samples import sample
from tests import fake_darshan
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log


class OutputCommand(NamedTuple):
    """A command and one of its outputs.

    words: the command, with CAPTURE, TWIN (its staged twin, beside it), HERE (the folder of both), OUT (the output) and
    FOLDER (which holds it) as placeholders. name: of the output; a folder in it is one with several results.
    is_file: whether --force replaces a file there. replaces: whether the command has --force at all. refused: its exit
    status where the output cannot be written. prepare: makes its input, from CAPTURE and OUT.
    """

    words: str
    name: str = "out.capture"
    is_file: bool = False
    replaces: bool = True
    refused: int = 2
    prepare: Callable[[Path, Path], object] = lambda capture, out: None

    @property
    def staged(self) -> bool:
        """Whether it needs the twin."""
        return "TWIN" in self.words

    def line(self, capture: Path, out: Path, *options: object) -> list[object]:
        """The words with more options, which stand before the job of `record`."""
        self.prepare(capture, out)
        named = {"CAPTURE": capture, "OUT": out, "FOLDER": out.parent, "TWIN": capture.parent / "twin"}
        name, *rest = self.words.replace("HERE", str(capture.parent)).split()
        return [name, *options, *(named.get(word, word) for word in rest)]


def _jobs(capture: Path, out: Path) -> None:
    """Logs of two jobs, of which one becomes `out`."""
    folder = capture.parent / "logs"
    folder.mkdir(exist_ok=True)
    for name in (out.stem, "other"):
        reads = DxtRecord(record_id=7, reads=[(0, 100, 1.0, 1.5)])
        write_dxt_log(folder / f"{name}.darshan", [reads], names={7: b"/data/part"}, job=JobSpec(nprocs=1))


def _program(capture: Path, out: Path) -> None:
    """A job that the stand-in of Darshan takes for a Python program."""
    place = capture.parent / "darshan"
    if not place.exists():
        place.mkdir()
        fake_darshan.build(place, fake_darshan.prepared_log(place / "prepared"))
        shutil.copy("/bin/true", capture.parent / "python-job")


_SAMPLE = sample("imagenet")
_PROFILES = " ".join(f"--profile {path}" for path in _SAMPLE.profiles)
_RECORD = "record --library HERE/darshan/libdarshan.so {} -- HERE/python-job"
# Both sides are one directory. No noise of the machine makes one of them eleven times as slow.
_REGRESS = "regress CAPTURE TWIN --repeats 6 --pace none --threshold 1000"
_SMALL = "unet3d_h100 dataset.num_files_train=8 train.epochs=1"
_RECORDS = "dataset.record_length_bytes=2048 dataset.record_length_bytes_stdev=0"

OUTPUT_COMMANDS = {
    "merge": OutputCommand(f"merge {_SAMPLE.log} {_PROFILES} -o OUT"),
    "merge --each": OutputCommand("merge --each HERE/logs -o FOLDER", "out/job.capture", refused=1, prepare=_jobs),
    "run": OutputCommand("run CAPTURE --target TWIN --pace none -o OUT"),
    "generate": OutputCommand(f"generate {_SMALL} --ranks 1 -o OUT"),
    "transform": OutputCommand("transform CAPTURE --transfer-size 8KiB -o OUT"),
    "anonymize": OutputCommand("anonymize CAPTURE -o OUT"),
    "record": OutputCommand(_RECORD.format("-o OUT --logs HERE/recorded"), prepare=_program),
    "record --logs": OutputCommand(_RECORD.format("-o HERE/r.capture --logs OUT"), "out", prepare=_program),
    "report": OutputCommand("report CAPTURE -o OUT", "out.html", is_file=True),
    "summary csv": OutputCommand("summary CAPTURE --show files -o OUT", "out.csv", is_file=True),
    "summary parquet": OutputCommand("summary CAPTURE --show rank-files -o OUT", "out.parquet", is_file=True),
    "export darshan": OutputCommand("export CAPTURE --to darshan -o OUT", "out.darshan", is_file=True),
    "export chrome": OutputCommand("export CAPTURE --to chrome -o OUT", "out.json.gz", is_file=True),
    "export csv": OutputCommand("export CAPTURE --to csv -o OUT", "out.csv", is_file=True),
    "export fio": OutputCommand("export CAPTURE --to fio --target TWIN -o OUT", "out"),
    "calibrate": OutputCommand("calibrate --target HERE --minutes 0.018 -o OUT", "out.json", is_file=True),
    "capacity": OutputCommand(
        f"capacity {_SMALL} {_RECORDS} --target HERE --most 1 --utilisation 1 -o FOLDER",
        "out/1-ranks.capture",
        replaces=False,
    ),
    "fit": OutputCommand("fit CAPTURE -o OUT", "out.yaml", is_file=True),
    "regress": OutputCommand(f"{_REGRESS} -o FOLDER", "out/pair-001-baseline.capture"),
    **{
        f"regress --report {kind}": OutputCommand(f"{_REGRESS} --report OUT", f"out.{kind}", is_file=True)
        for kind in ("xml", "md", "html")
    },
    "regress --record": OutputCommand(f"{_REGRESS} --record OUT", "out.json", is_file=True),
    "demo": OutputCommand("demo -o OUT", "out", replaces=False),
}
"""Name -> command. `tests/test_nothing_outside.py` holds the names against the options of all commands."""
