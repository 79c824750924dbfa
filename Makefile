# Targets set up .venv the first time: the demo needs a part of it only. A changed pyproject.toml or
# constraints.txt sets it up again.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq -c constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check docs bench format clean

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

demo: .venv/.demo  ## Show what focal loss does to probabilities, and undo it.
	@$(BIN)/refocal demo

test: .venv/.ready  ## Run every test, the slow ones and the doctests too.
	@# One thread for each worker: the workers already fill the cores.
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto

check: .venv/.ready  ## All that must pass before a merge: lint, types, tests, the built wheel.
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict src
	@$(MAKE) --no-print-directory test
	@rm -rf dist
	@$(BIN)/python -m build --quiet --no-isolation --outdir dist .
	@PYTHON=$(BIN)/python bash tests/smoke_wheel.sh dist/refocal-*.whl dist/refocal-*.tar.gz

docs: .venv/.docs  ## Build the site into out/docs, and check its words, its links, its code and its pages.
	@$(BIN)/codespell
	@# The figures are small: compiled kernels would cost more than they save.
	@REFOCAL_KERNELS=off $(BIN)/sphinx-build -q -W --keep-going -n docs out/docs
	@$(BIN)/python -m pytest -q -m docs tests/docs
	@echo "out/docs/index.html"

bench: .venv/.bench  ## Run every benchmark; RESULTS=benchmarks/results replaces the tracked numbers.
	@set -e; for file in benchmarks/bench_*.py; do \
		echo "== $$file"; BENCH_RESULTS="$(RESULTS)" $(BIN)/python "$$file"; done

format: .venv/.ready  ## Format the code and fix what ruff can fix.
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean:  ## Remove what was built and cached (neither .venv nor out).
	@rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis refocal-demo*
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	@echo "setting up .venv for the demo (the first time takes a minute)"
	@$(PIP) -e '.[torch,plots]'
	@touch $@

.venv/.ready: pyproject.toml constraints.txt | .venv/bin/python
	@echo "setting up .venv (the first time takes a few minutes)"
	@$(PIP) -e '.[dev]'
	@touch $@ .venv/.demo

.venv/.docs: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing what the documentation needs"
	@$(PIP) -e '.[docs]'
	@touch $@

# Without their own dependencies, two peers bring no other build of PyTorch.
.venv/.bench: .venv/.ready
	@echo "installing the libraries that the benchmarks compare with"
	@$(PIP) -e '.[bench]'
	@$(PIP) --no-deps kornia kornia_rs monai
	@touch $@
