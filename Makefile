# Everything a developer runs; 'make help' lists it. Each target does its own set-up.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
STARTED := $(shell date +%s.%N)
DATA   ?= demo-data

.DEFAULT_GOAL := help
.PHONY: help install demo format check test test-all bench docs clean servers

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# uv is fetched into the environment because it installs the 100 packages in seconds where pip needs minutes;
# where it cannot be had, pip does the same work.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Sluice needs Python 3.11 or newer; run 'make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q uv 2>/dev/null \
	  && $(BIN)/uv pip install -q --python $(BIN)/python -e '.[dev]' \
	  || $(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

install: $(STAMP) ## make .venv with everything for development

demo: $(STAMP) ## run the product: broker, demo fleet, a Delta table, a page to open
	@SLUICE_DEMO_STARTED=$(STARTED) $(BIN)/sluice demo --data-dir $(DATA)

format: $(STAMP) ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

check: $(STAMP) ## ruff, mypy --strict, import rules
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports

servers: ## the servers that tests run against: mosquitto and its clients, Chromium
	@sh tests/support/fetch-servers.sh

test: $(STAMP) servers check ## all tests but the minutes-long ones
	@$(BIN)/python -m pytest -q -m "not heavy"

test-all: $(STAMP) servers check ## all tests
	@$(BIN)/python -m pytest -q

bench: $(STAMP) servers ## benchmarks against mosquitto in the same run; results in benchmarks/results
	@$(BIN)/python -m benchmarks

docs: $(STAMP) ## write docs/reference from the code
	@$(BIN)/python -m docs.generate

clean: ## remove the environment, caches and demo data
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis demo-data build dist
