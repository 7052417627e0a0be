# Two commands, from a fresh clone: `make demo` and `make test`. Each makes .venv from the constraints first.
PYTHON ?= python3
BIN := .venv/bin
GPU_PYTHON ?= $(BIN)/python
# One thread a process: the tests measure and compare, and many of them start processes of their own.
# Compiled files are kept, whatever the shell says: each of these processes, and the next run, would compile them again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q

# Only the files with such tests: to collect all others takes ten seconds.
ALONE = $(shell grep -rl "mark.alone" tests)

.PHONY: help demo docs test quick test-flower soak random gpu check format pins loops wheel-test clean
.DEFAULT_GOAL := help

help:  ## List all targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: .venv/installed  ## Fit on recorded jobs, compare and replay on others, balance a real training, and write a report.
	@$(BIN)/paceline demo

# Four files at a time, on two cores: tests that start processes wait for them. Of the examples that Hypothesis draws,
# the same each time, three tenths; make soak draws all.
test: .venv/installed  ## All tests: four files at a time, then those that need the machine alone.
	@PACELINE_EXAMPLES=0.3 $(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder -m "not alone and not soak"
	@$(PYTEST) -m "alone and not soak" $(ALONE)

# A tenth of the examples that Hypothesis draws. What takes over a second all the same is shown, to be marked slow.
quick: .venv/installed  ## The tests that take a minute: no other processes, no doctests, nothing marked slow.
	@PACELINE_EXAMPLES=0.1 $(PYTEST) -n 2 --dist worksteal --durations=5 --durations-min=1 \
	    -m "not processes and not slow and not alone and not soak" tests

# Flower pins versions that others here cannot share, so it has an environment of its own.
test-flower: .venv-flower/installed  ## The tests of the Flower strategy, in their own environment.
	@OMP_NUM_THREADS=1 .venv-flower/bin/python -m pytest -q tests/coordinator/test_federated_*.py tests/integrations/test_flower.py \
	    tests/integrations/test_flower_live.py 'tests/test_random_kills.py::test_a_hundred_kills[federated]' \
	    src/paceline/coordinator/federated src/paceline/integrations/flower

soak: .venv/installed  ## Long live runs, long fuzzing, and all examples of every law, outside CI.
	@$(PYTEST) -m "soak or hypothesis" tests

# pytest-randomly has an environment of its own: it would shuffle every other run too.
random: .venv-random/installed  ## The tests that start no process, in three random orders and with other seeds.
	@for seed in 1 2 3; do OMP_NUM_THREADS=1 .venv-random/bin/python -m pytest -q -n 2 \
	    -p no:cacheprovider --randomly-seed=$$seed -m "not processes and not alone and not soak" || exit 1; done

# GPU_PYTHON names a Python whose torch finds the device, where .venv has the builds for processors alone.
gpu: .venv/installed  ## Check everything on a CUDA device, in four minutes; without one, with fake CUDA.
	@PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu.py

check: .venv/installed  ## Formatting, lint, import rules and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=src $(BIN)/lint-imports --no-cache
	$(BIN)/mypy

format: .venv/installed  ## Format, and fix lint errors automatically.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pins: .venv/installed  ## Update constraints*.txt to the newest versions that resolve together. Run make test afterwards.
	@$(BIN)/python tests/renew_pins.py

loops: .venv/installed  ## Update the table of loops in docs/reference/loops.md from the tests.
	@PYTHONPATH=src $(BIN)/python tests/loops/renew.py

# The site needs no .venv, and .venv not the site's packages.
docs: .venv-docs/installed  ## Build the documentation into build/site; any warning or broken link is an error.
	@.venv-docs/bin/python docs/building/make_site.py

# The built wheel, alone in an environment of its own, outside the checkout.
wheel-test: .venv/installed  ## Build the wheel and test it in its own environment.
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/python -m build --quiet --wheel --no-isolation --outdir "$$folder" .; \
	$(PYTHON) -m venv "$$folder/venv"; \
	"$$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    "$$(echo "$$folder"/*.whl)[all]" pytest pytest-timeout pytest-xdist hypothesis; \
	cp -r tests "$$folder/tests"; cd "$$folder"; \
	OMP_NUM_THREADS=1 venv/bin/python -m pytest -q -c /dev/null --rootdir . -n 2 --dist loadfile \
	    -m "not checkout and not soak and not alone" tests

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv (a few minutes the first time) ..."
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "paceline needs Python 3.11 or later; name one with: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

.venv-flower/installed: pyproject.toml constraints-flower.txt
	@$(PYTHON) -m venv .venv-flower
	@.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-flower.txt \
	    --editable ".[flower,lab]" pytest pytest-timeout hypothesis psutil
	@touch $@

.venv-docs/installed: pyproject.toml constraints-docs.txt
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-docs.txt \
	    --editable . zensical mkdocstrings-python latex2mathml
	@touch $@

.venv-random/installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv .venv-random
	@.venv-random/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    --editable ".[dev]" pytest-randomly
	@touch $@

clean:  ## Remove build outputs, environments and caches.
	rm -rf .venv .venv-docs .venv-flower .venv-random demo-output build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
