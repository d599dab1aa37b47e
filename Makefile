# Everything a developer runs; 'make help' lists it. Each target does its own set-up.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python --build-constraints locks/build.txt
LOCK   := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
RUN    := $(VENV)/.installed-run
DEV    := $(VENV)/.installed-dev
STARTED := $(shell date +%s.%N)
DATA   ?= demo-data
# Many tests wait for processes of their own, so three at a time keep two cores busy; files stay together, since their
# tests share brokers and Spark sessions, the longest first (tests/seconds.json). What fails beside others runs once more
# alone: tests/support/second_look.py.
PYTEST  = $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -p tests.support.second_look
PROBES  = -p tests.support.branch_coverage
FOUND   = $(BIN)/python -m tests.support.second_look

# Steps of one core each, their output one after the other.
ABREAST = +$(MAKE) --no-print-directory --output-sync=target -j

.DEFAULT_GOAL := help
.PHONY: help install ui demo format check check-types check-rules check-web servers-of-smoke supply-chain test test-full test-heavy bench docs clean servers lock sbom licences

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# Spark starts a dozen Python processes; without kept bytecode each compiles the same packages again.
unexport PYTHONDONTWRITEBYTECODE

# Every package is the one that locks/ names, by its hash. uv is fetched into the environment because it installs them in
# seconds where pip needs minutes: from its own cache when that has them all, else from the network; where uv cannot be
# had, pip does the same work.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "Sluice needs Python 3.11 or newer; run 'make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'"; exit 1; }
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null
@$(BIN)/python -m pip install -q --require-hashes -r locks/build.txt 2>/dev/null \
  && { $(UV) --offline --require-hashes -r $(1) 2>/dev/null || $(UV) --require-hashes -r $(1); } \
  || $(BIN)/python -m pip install -q --require-hashes -r $(1)
@SLUICE_UI=skip $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
endef

# What the product needs to run, with the Spark that the project is tested on.
$(RUN): pyproject.toml locks/build.txt locks/run.txt
	$(call environment,locks/run.txt)
	@touch $@

$(DEV): pyproject.toml locks/build.txt locks/dev.txt
	$(call environment,locks/dev.txt)
	@touch $(RUN) $@

install: $(DEV) ui ## make .venv with everything for development

# Needs Node.js, from PyPI, and npm packages only if the sources of the dashboard changed. SLUICE_UI=skip goes without it.
ui: | $(RUN) ## build the dashboard
	@$(BIN)/python ui/web/build.py

demo: ui ## run the product: broker, demo fleet, a Delta table, a page to open
	@SLUICE_DEMO_STARTED=$(STARTED) $(BIN)/sluice demo --data-dir $(DATA)

format: $(DEV) ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	@test "$$SLUICE_UI" = skip || $(BIN)/python ui/web/build.py format

check: $(DEV) ## ruff, mypy --strict, tsc, prettier, import rules, words
	@$(ABREAST) check-types check-rules check-web

check-types: $(DEV)
	@$(BIN)/mypy

check-rules: $(DEV)
	@$(BIN)/ruff format --check -q . && $(BIN)/ruff check -q . && $(BIN)/lint-imports && $(BIN)/python -m docs.words

check-web: ui
	@test "$$SLUICE_UI" = skip || $(BIN)/python ui/web/build.py check

supply-chain: $(DEV) ## licences and known vulnerabilities of what the product needs
	@$(BIN)/python -m locks.supply_chain licences >/dev/null && $(BIN)/python -m locks.supply_chain audit

lock: $(DEV) ## write locks/ from pyproject.toml; 'make lock UPGRADE=--upgrade' takes newer versions
	@printf 'uv\nhatchling\neditables\nsetuptools\nwheel\n' | $(LOCK) $(UPGRADE) - -o locks/build.txt
	@sed -n 's/^NODE: Final = "\(.*\)"/\1/p' ui/web/build.py | $(LOCK) - -o locks/web.txt
	@printf 'hatchling\neditables\n' | $(LOCK) $(UPGRADE) --extra dev -c locks/build.txt pyproject.toml - -o locks/dev.txt
	@printf 'hatchling\neditables\n' | $(LOCK) $(UPGRADE) --extra kafka --extra postgresql --extra cluster --extra mysql --extra redis --extra spark --extra telemetry -c locks/dev.txt \
	  pyproject.toml - -o locks/run.txt

licences: $(DEV) ## list the licences of what the product needs
	@$(BIN)/python -m locks.supply_chain licences

sbom: $(DEV) ## write build/sbom.json: a bill of materials, CycloneDX 1.6
	@mkdir -p build && $(BIN)/python -m locks.supply_chain sbom > build/sbom.json && echo build/sbom.json

servers: $(DEV) ## the servers that tests run against: mosquitto, NATS, PostgreSQL, Kafka, stores, an Iceberg catalog, Chromium
	@sh tests/support/fetch-servers.sh
	@$(BIN)/python -m tests.support.kafka_server
	@$(BIN)/python -m tests.support.s3_server
	@$(BIN)/python -m tests.support.gcs_server
	@$(BIN)/python -m tests.support.iceberg_catalog

servers-of-smoke: $(DEV)
	@sh tests/support/fetch-servers.sh chromium-headless-shell mosquitto-clients && $(BIN)/python -m tests.support.kafka_server

test: $(DEV) ## what runs in one process, and the real thing once: ten minutes
	@$(ABREAST) check-types check-rules check-web servers-of-smoke
	@rm -rf build/found; status=0; $(PYTEST) --tier quick $(PROBES) || status=1; $(PYTEST) --tier smoke || status=1; $(FOUND); exit $$status

test-full: $(DEV) servers ui supply-chain ## the rest: every server, browser page, kill; after 'make test'
	@status=0; $(PYTEST) --tier full $(PROBES) || status=1; $(FOUND); exit $$status

test-heavy: $(DEV) servers ui ## the tests that take minutes each
	@$(PYTEST) --tier heavy

bench: $(DEV) servers ## benchmarks against mosquitto in the same run; results in benchmarks/results
	@$(BIN)/python -m benchmarks

docs: $(DEV) ## write docs/reference from the code
	@$(BIN)/python -m docs.generate

clean: ## remove the environment, caches and demo data
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis demo-data build dist ui/web/dist ui/web/node_modules
