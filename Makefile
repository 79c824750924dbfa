# Every target sets up .venv the first time; a changed pyproject.toml or constraints.txt sets it up again.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check bench format clean

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

demo: .venv/.ready  ## Show what focal loss does to probabilities, and undo it.
	@$(BIN)/refocal demo

test: .venv/.ready  ## Run every test, the slow ones and the doctests too.
	@# One thread a worker: the workers already fill the cores.
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto

check: .venv/.ready  ## All that must pass before a merge: lint, types, tests, the built wheel.
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict src
	@$(MAKE) --no-print-directory test
	@rm -rf dist
	@$(BIN)/python -m build --quiet --no-isolation --outdir dist .
	@PYTHON=$(BIN)/python bash tests/smoke_wheel.sh dist/refocal-*.whl

bench: .venv/.ready  ## Run every benchmark.
	@set -e; for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python "$$file"; done

format: .venv/.ready  ## Format the code and fix what ruff can fix.
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean:  ## Remove what was built and cached (not .venv).
	@rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis refocal-demo*
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready: pyproject.toml constraints.txt
	@echo "setting up .venv (the first time takes a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev]'
	@touch $@
