# %% [markdown]
# # The I/O of a training run: recorded, looked at, replayed, compared
# Run it cell by cell in Jupyter (jupytext), VS Code or PyCharm, or as a program: `python docs/example_notebook.py`.

# %% Merge the log and the profiles of a bundled run into a capture
import tempfile

import dxt_replay

files = dxt_replay.sample("imagenet")
folder = tempfile.TemporaryDirectory()
merged = dxt_replay.merge(files.log, f"{folder.name}/imagenet.capture", profiles=files.profiles)
capture = dxt_replay.open_capture(merged.capture)
print(capture)

# %% Look at it: totals, what stands out, the slowest steps, charts
total = dxt_replay.summary(capture)
print(f"{total.operations.read} reads of {total.bytes.read / 1e6:.0f} MB in {total.files} files")
for finding in dxt_replay.findings(capture):
    print(f"[{finding.severity}] {finding.title}: {finding.remedy}")
steps = dxt_replay.table(capture, "steps")
print(steps.nlargest(3, "duration_ns")[["rank", "step", "duration_ns", "input_wait_ns", "io_ns"]])
chart = dxt_replay.figure(capture, "timeline")  # in a notebook: the last line of a cell shows it
print(f"{len(chart.data)} traces from {min(chart.data[0].base):.2f} s on")

# %% Build the twin data set of the first 30 steps here, and replay them four times as fast
part = dxt_replay.part(capture, steps="0-29")
staged = dxt_replay.stage(part, folder.name)
print(f"staged {len(staged.plan.to_write)} files")
result = dxt_replay.run(part, folder.name, f"{folder.name}/replay.capture", speed=4)
print(f"replayed {result.as_json()['operations']} operations in {result.as_json()['elapsed_s']:.2f} s")

# %% Compare the replay with its source
comparison = dxt_replay.compare(capture, f"{folder.name}/replay.capture")
print("the same operations:", all(comparison.as_json()["exact"][name] for name in ("operations", "bytes", "files")))
folder.cleanup()
