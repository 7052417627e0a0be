# Two commands, from a fresh clone: `make demo` and `make test`. Each makes .venv from the constraints first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-flower check wheel-test clean

demo: .venv/installed
	@$(BIN)/paceline demo

test: .venv/installed
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q

# Flower pins versions that others here cannot share, so it has an environment of its own.
test-flower: .venv-flower/installed
	@OMP_NUM_THREADS=1 .venv-flower/bin/python -m pytest -q tests/test_federated.py tests/test_flower.py \
	    tests/test_flower_live.py src/paceline/coordinator/federated

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

# The built wheel, alone in an environment of its own, outside the checkout.
wheel-test: .venv/installed
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/python -m build --quiet --wheel --no-isolation --outdir "$$folder" .; \
	$(PYTHON) -m venv "$$folder/venv"; \
	"$$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    "$$(echo "$$folder"/*.whl)[all]" pytest pytest-timeout hypothesis; \
	cp -r tests "$$folder/tests"; cd "$$folder"; \
	OMP_NUM_THREADS=1 venv/bin/python -m pytest -q -c /dev/null --rootdir . -m "not checkout" tests

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv (a few minutes the first time) ..."
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "paceline needs Python 3.11 or later; name one with: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

.venv-flower/installed: pyproject.toml constraints-flower.txt
	@$(PYTHON) -m venv .venv-flower
	@.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-flower.txt \
	    --editable ".[flower,neural,boosting]" pytest pytest-timeout hypothesis
	@touch $@

clean:
	rm -rf .venv .venv-flower demo-output build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
