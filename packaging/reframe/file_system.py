"""ReFrame: replays a capture on two file systems in turn, and fails if the candidate is slower than the baseline.

reframe -c packaging/reframe/file_system.py -r \\
    -S capture=/srv/captures/run.capture -S baseline=/lustre/old -S candidate=/lustre/new
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_after, run_before, sanity_function, variable


@rfm.simple_test
class FileSystem(rfm.RunOnlyRegressionTest):
    """Sanity: the replays did the recorded work, and nothing became slower. Performance: the figures of regress."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "dxt-replay"
    capture = variable(str)
    baseline = variable(str)
    candidate = variable(str)
    pairs = variable(int, value=10)
    processes = variable(int, value=1)
    time_limit = "2h"
    keep_files = ["regress.json", "regress.xml", "regress.html"]

    @run_after("init")
    def set_command(self):
        self.num_tasks = self.processes
        self.executable_opts = [
            f"regress {self.capture} --baseline {self.baseline} --candidate {self.candidate} --repeats {self.pairs}",
            "--cold --json --report regress.xml --report regress.html > regress.json",
        ]

    @run_before("sanity")
    def read_result(self):
        path = Path(self.stagedir, "regress.json")
        self.result = json.loads(path.read_text() or "{}") if path.exists() else {}

    @sanity_function
    def is_no_regression(self):
        found = self.result
        if "verdict" not in found:
            return sn.assert_true(False, msg=f"regress gave no result: see {self.stderr}, {found.get('error', '')}")
        return sn.and_(
            sn.assert_true(found["valid"], msg="; ".join(found["obstacles"])),
            sn.assert_ne(found["verdict"], "regression", msg=f"{found['headline']}: {found['reason']}"),
        )

    @run_before("performance")
    def set_figures(self):
        for name, metric in self.result["metrics"].items():
            self.perf_variables[f"{name}_ratio"] = sn.make_performance_function(sn.defer(metric["ratio"]), "x")
            for side in ("baseline", "candidate"):
                values = sorted(metric[side])
                self.perf_variables[f"{name}_{side}"] = sn.make_performance_function(
                    sn.defer(values[len(values) // 2]), metric["unit"] or "1"
                )
