# `make help` lists the chores. They use the python on the PATH: activate your virtual environment first.
PYTHON ?= python
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | expand -t 16

install:  ## editable install with tests, benchmarks and an MPI
	$(PYTHON) -m pip install -e '.[test,bench,mpich]'

build:  ## the compiled cores, in place
	$(PYTHON) setup.py build_ext --inplace

test:  ## the test suite
	$(PYTHON) -m pytest -m 'not slow'

test-fast:  ## what is neither slow nor in a group of tests/conftest.py: two minutes on two cores
	$(PYTHON) -m pytest -n 2 --dist loadgroup -m 'not (slow or mpi or faults or browser or whole)'

test-mpi:  ## jobs under mpiexec
	$(PYTHON) -m pytest -m 'mpi and not slow'

test-browser:  ## the report page in a real browser
	$(PYTHON) -m pytest -m browser

test-slow:  ## everything, with new random examples: fuzzing of logs and profiles, replays of all captures
	$(PYTHON) -m pytest --hypothesis-profile=search

test-faults:  ## every command with calls that fail or hang, full disks, limits and signals below it; ten minutes
	$(PYTHON) -m pytest -m faults

test-workloads:  ## all shipped workloads at a small scale: generated, staged, replayed, compared
	$(PYTHON) -m pytest tests/replay/interface/test_shipped_workloads.py

lint:  ## ruff and mypy
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

bench:  ## speed of each hot path as ratios against peers, a table and benchmarks/results/*.json
	$(PYTHON) -m benchmarks.run_all

bench-prediction:  ## pace steps against a real application on throttled storage; needs root, 5 minutes
	$(PYTHON) -m benchmarks.prediction

bench-agreement:  ## simulate against run on calibrated targets; needs root and libfuse3, 45 minutes
	$(PYTHON) -m benchmarks.simulation_agreement

bench-pipelines:  ## Keras, JAX and PyTorch jobs predicted between fast and slow storage; root, libfuse3, Darshan (LIBRARY=), 2 hours
	$(PYTHON) -m benchmarks.pipelines --simulate $(if $(LIBRARY),--library $(LIBRARY))

bench-noise:  ## how much of a replay's distance is noise; DARSHAN=/path/to/libdarshan.so: and what Darshan counts in replays
	$(PYTHON) -m benchmarks.replay_noise $(if $(DARSHAN),--library $(DARSHAN)) $(if $(RECORDINGS),--recordings $(RECORDINGS))

bench-scale:  ## a log of a billion operations from merge to compare, and 10,000 ranks; 25 GB of disk, an hour of CPU
	$(PYTHON) -m benchmarks.scale --operations 10e6 100e6 1e9 --job-ranks 10000 --ranks 1000 4000 10000 --workers 1 2

bench-file-systems:  ## regress on real file systems: known changes, and false alarms; needs root and loop devices, 25 minutes
	$(PYTHON) -m benchmarks.file_systems

bench-history:  ## regress --against and history over sessions of which one changes; needs root and loop devices, 10 minutes
	$(PYTHON) -m benchmarks.regression_history

figures:  ## Figures 9 to 15 of the DLIO paper, simulated, beside what was printed; half an hour
	$(PYTHON) -m benchmarks.paper_figures

FUZZ = --count 1000
fuzz:  ## mutated input for every reader; FUZZ="--seconds 600 --seeds DIR --save DIR", or FUZZ=--help
	$(PYTHON) -m tests.fuzz $(FUZZ)

mutations:  ## whether the tests notice changes of the ten most important modules; needs cosmic-ray, an hour
	$(PYTHON) -m tests.mutations

survey-logs:  ## merge every Darshan log below LOGS=DIR, and say what was traced, rebuilt and met
	$(PYTHON) -m benchmarks.log_survey $(LOGS)

commands:  ## docs/commands.md, from the commands' own help
	PYTHONPATH=. $(PYTHON) docs/write_commands.py > docs/commands.md.new && mv docs/commands.md.new docs/commands.md

demo:  ## the main job on the bundled captures
	dxt-replay demo

clean:  ## remove what building left
	rm -rf build dist *.egg-info
	find profiler_merge replay \( -name '*.so' -o -name '*.c' \) -delete

.PHONY: help install build commands test test-fast test-mpi test-browser test-slow test-faults test-workloads lint bench bench-prediction bench-agreement bench-pipelines bench-noise bench-scale bench-file-systems bench-history figures mutations survey-logs fuzz demo clean
