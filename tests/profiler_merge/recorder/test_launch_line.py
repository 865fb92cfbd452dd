"""Where the prefix goes in the lines of launchers, as people type them."""

from __future__ import annotations

import pytest

from dxt_replay.profiler_merge.recorder.launch_line import is_launched, with_prefix
from dxt_replay.traces.errors import UsageError

PROGRAMS = {"python", "python3", "./train", "/usr/bin/test", "test", "ssh", "bash", "debug"}


def placed(line: str) -> str:
    return " ".join(with_prefix(line.split(), ["PRE"], lambda word: word in PROGRAMS))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py -n 8", "PRE python train.py -n 8"),
        ("torchrun --nproc-per-node 4 train.py", "PRE torchrun --nproc-per-node 4 train.py"),
        ("mpiexec -n 8 python train.py", "mpiexec -n 8 PRE python train.py"),
        ("/opt/mpich/bin/mpiexec -np 8 ./train", "/opt/mpich/bin/mpiexec -np 8 PRE ./train"),
        ("mpiexec -v -n 2 python a.py", "mpiexec -v -n 2 PRE python a.py"),
        ("mpiexec -l python a.py", "mpiexec -l PRE python a.py"),
        ("mpiexec -bootstrap ssh -n 2 python a.py", "mpiexec -bootstrap ssh -n 2 PRE python a.py"),
        ("mpiexec -genv A 1 -env B python -n 2 python a", "mpiexec -genv A 1 -env B python -n 2 PRE python a"),
        (
            "mpirun --mca btl self,tcp --bind-to none -x PATH -np 4 python t.py",
            "mpirun --mca btl self,tcp --bind-to none -x PATH -np 4 PRE python t.py",
        ),
        ("mpirun --allow-run-as-root -n 2 python t.py", "mpirun --allow-run-as-root -n 2 PRE python t.py"),
        ("mpiexec -n 1 ./train : -n 7 python w.py", "mpiexec -n 1 PRE ./train : -n 7 PRE python w.py"),
        ("srun -p test -N 2 -n8 --gres=gpu:4 python t.py", "srun -p test -N 2 -n8 --gres=gpu:4 PRE python t.py"),
        ("srun --unbuffered --partition debug python t", "srun --unbuffered --partition debug PRE python t"),
        ("srun -N 2 -- python t.py", "srun -N 2 -- PRE python t.py"),
        ("flux run -n 8 python t.py", "flux run -n 8 PRE python t.py"),
        ("timeout 600 mpiexec -n 2 python t.py", "timeout 600 mpiexec -n 2 PRE python t.py"),
        ("env A=1 numactl -N 0 srun -n 2 python t.py", "env A=1 numactl -N 0 srun -n 2 PRE python t.py"),
        ("my-launcher --ranks 4 {} python t.py", "my-launcher --ranks 4 PRE python t.py"),
        ("python t.py --backend mpiexec", "PRE python t.py --backend mpiexec"),
        ("timeout 600 python t.py mpiexec", "PRE timeout 600 python t.py mpiexec"),
        ("flux jobs", "PRE flux jobs"),
    ],
)
def test_the_prefix_stands_before_the_program_of_the_ranks(line: str, expected: str) -> None:
    assert placed(line) == expected


def test_a_program_that_is_not_found_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"write \{\} before it, as in `dxt-replay record -- mpiexec"):
        placed("mpiexec --new-option 3 train.py")


def test_ranks_are_expected_behind_a_launcher_alone() -> None:
    assert is_launched(["mpiexec", "-n", "2", "python", "t.py"])
    assert is_launched(["strange", "{}", "python", "t.py"])
    assert not is_launched(["torchrun", "t.py"])
