# Everything a developer runs; 'make help' lists it. Each target does its own set-up.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python
RUN    := $(VENV)/.installed-run
DEV    := $(VENV)/.installed-dev
STARTED := $(shell date +%s.%N)
DATA   ?= demo-data
# Most tests wait for processes of their own, so two at a time take half as long also on one core; files stay together,
# since their tests share brokers and Spark sessions, in the order of tests/conftest.py: the long ones first.
PYTEST  = $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install demo format check test test-all bench docs clean servers

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# Spark starts a dozen Python processes; without kept bytecode each compiles the same packages again.
unexport PYTHONDONTWRITEBYTECODE

# uv is fetched into the environment because it installs the packages in seconds where pip needs minutes: from its own
# cache when that has them all, else from the network; where uv cannot be had, pip does the same work.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "Sluice needs Python 3.11 or newer; run 'make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'"; exit 1; }
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null
@$(BIN)/python -m pip install -q uv 2>/dev/null \
  && { $(UV) --offline $(1) 2>/dev/null || $(UV) $(1); } \
  || $(BIN)/python -m pip install -q $(1)
endef

# What the product needs to run, with the Spark that the project is tested on.
$(RUN): pyproject.toml
	$(call environment,-e '.[spark]' pyspark==4.2.0)
	@touch $@

$(DEV): pyproject.toml
	$(call environment,-e '.[dev]')
	@touch $(RUN) $@

install: $(DEV) ## make .venv with everything for development

demo: $(RUN) ## run the product: broker, demo fleet, a Delta table, a page to open
	@SLUICE_DEMO_STARTED=$(STARTED) $(BIN)/sluice demo --data-dir $(DATA)

format: $(DEV) ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

check: $(DEV) ## ruff, mypy --strict, import rules
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports

servers: $(DEV) ## the servers that tests run against: mosquitto, NATS, PostgreSQL, Kafka, Chromium
	@sh tests/support/fetch-servers.sh
	@$(BIN)/python -m tests.support.kafka_server

test: $(DEV) servers check ## all tests but the minutes-long ones
	@$(PYTEST) -m "not heavy"

test-all: $(DEV) servers check ## all tests
	@$(PYTEST)

bench: $(DEV) servers ## benchmarks against mosquitto in the same run; results in benchmarks/results
	@$(BIN)/python -m benchmarks

docs: $(DEV) ## write docs/reference from the code
	@$(BIN)/python -m docs.generate

clean: ## remove the environment, caches and demo data
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis demo-data build dist
