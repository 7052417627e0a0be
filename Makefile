# Two commands, from a fresh clone: `make demo` and `make test`. Each makes .venv from the constraints first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check clean

demo: .venv/installed
	@$(BIN)/paceline demo

test: .venv/installed
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv (a few minutes the first time) ..."
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "paceline needs Python 3.11 or later; name one with: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv demo-output build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
