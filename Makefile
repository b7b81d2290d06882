# One command per verb. Everything is set up in .venv from Python 3.11+ and the package index alone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2

.PHONY: demo test quick lint bench catalog docs clean

# The base install: what `pip install rlvitals` gives.
$(BIN)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

# The developers' tools on top.
$(BIN)/.dev: $(BIN)/.base
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev
	touch $@

demo: $(BIN)/.base  ## train a small model, record it, look at it
	$(BIN)/python examples/numpy_grpo.py out/demo
	$(BIN)/rlvitals show out/demo
	@echo
	@echo "Next:  $(BIN)/rlvitals explain frac_reward_zero_std"
	@echo "       $(BIN)/rlvitals export out/demo --to csv --output demo.csv"

test: $(BIN)/.dev lint  ## everything CI runs
	$(BIN)/python -m pytest -n $(JOBS)

quick: $(BIN)/.dev  ## the inner loop, under a minute
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow" -q

lint: $(BIN)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m rlvitals.catalog.build --check
	$(BIN)/python -m rlvitals.catalog.pages --check docs/metrics
	$(BIN)/python -m rlvitals.health.build --check
	$(BIN)/python -m rlvitals.health.pages --check docs/rules

bench: $(BIN)/.dev  ## side-by-side measurements
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	$(BIN)/python benchmarks/recording.py
	$(BIN)/python benchmarks/index_formats.py

catalog: $(BIN)/.dev  ## compile the catalogue and the rules, and their docs pages
	$(BIN)/python -m rlvitals.catalog.build
	$(BIN)/python -m rlvitals.catalog.pages docs/metrics
	$(BIN)/python -m rlvitals.health.build
	$(BIN)/python -m rlvitals.health.pages docs/rules

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
