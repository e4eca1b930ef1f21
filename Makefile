# make demo    profile, estimate, plan and run: the main job, on this machine
# make test    the tests, the oracles on some of their seeds
# make test-all the tests, the oracles on all their seeds; both say at the end how many more these are
# make check   lint, format, types and tests: what .ci/run calls
# make docs    the documentation as pages, in out/docs
# make tables  write the quickly read form of the data tables anew, after one was changed
# make format  rewrite the code in the house format
# make clean   remove the environment and everything made

VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/installed-to-run
DEV_STAMP := $(VENV)/installed-to-develop
DOCS_STAMP := $(VENV)/installed-to-document
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# pip compiles what it copies, and leaves what is installed in place to the first command.
COMPILE := $(BIN)/python -m compileall -q profiles models_zoo estimator planner cellplan
REQUIREMENTS := pyproject.toml constraints.txt

PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: demo test test-all browser check lint types docs tables format clean

# A store of its own, so that the demo leaves the user's store alone.
demo: export CELLPLAN_STORE := out/demo.sqlite
demo: $(RUN_STAMP)
	mkdir -p out
	$(BIN)/cellplan profile gpt-tiny --cluster local:1x2 --dtype fp32
	$(BIN)/cellplan comm measure --backend gloo --ranks 2 --busy
	$(BIN)/cellplan estimate gpt-tiny --cluster local:1x2 --dtype fp32
	$(BIN)/cellplan plan gpt-tiny --cluster local:1x2 --dtype fp32 -o out/gpt-tiny.plan.json
	$(BIN)/cellplan run out/gpt-tiny.plan.json --steps 3 --profile
	$(BIN)/cellplan estimate models_zoo/configs/llama-3-8b.json --cluster a100-80gb:2x8
	$(BIN)/cellplan plan models_zoo/configs/llama-3-8b.json --cluster a100-80gb:2x8 -o out/llama-3-8b.plan.json

check: lint types test

test: $(DEV_STAMP) browser
	$(PYTEST)

# Pages are tested in a browser that is there; none is installed unasked.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	  echo "no Chromium here: tests of pages in a browser are skipped (Debian, Ubuntu: apt-get install chromium)"

test-all: $(DEV_STAMP) browser
	$(PYTEST) --all-seeds

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	$(BIN)/mypy

# Warnings are errors: no page without a way to it, no link to nothing.
docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs out/docs
	@echo "open out/docs/index.html"

# The parsed form of the tables that every command reads; a test says where it is not the file's.
tables: $(DEV_STAMP)
	$(BIN)/python -m profiles.tables profiles/data/*.toml models_zoo/*/*.toml

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# pip is the last thing that venv puts there: with it, the environment is whole.
$(BIN)/pip:
	@echo "making the environment in $(VENV)"
	@lacking=; for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  $$python -c 'import ensurepip, venv' 2>/dev/null || { lacking=$$python; continue; }; \
	  exec $$python -m venv $(VENV); \
	done; \
	if [ -n "$$lacking" ]; then \
	  echo "cellplan: $$lacking lacks the modules venv and ensurepip; install them (Debian, Ubuntu: the package python3-venv)"; \
	else \
	  echo "cellplan: no Python 3.11 or newer found as python3 or python3.11 ... python3.14; install one"; \
	fi >&2; exit 1

$(RUN_STAMP): $(REQUIREMENTS) | $(BIN)/pip
	@echo "installing cellplan and torch into $(VENV); the first time takes some minutes"
	@$(PIP_INSTALL) -e '.[torch,network,report]'
	@$(COMPILE)
	@touch $@

$(DEV_STAMP): $(REQUIREMENTS) | $(BIN)/pip
	@echo "installing cellplan, torch and the development tools into $(VENV); the first time takes some minutes"
	@$(PIP_INSTALL) -e '.[torch,dev,docs]'
	@$(COMPILE)
	@touch $(RUN_STAMP) $@

$(DOCS_STAMP): $(REQUIREMENTS) | $(BIN)/pip
	@echo "installing cellplan and what its documentation is built with into $(VENV)"
	@$(PIP_INSTALL) -e '.[docs]'
	@touch $@
