# The two commands that matter: `make demo` and `make test`. Both set up what is missing.

PYTHON ?= python3
ROWS ?= 5000
ENGINE ?= spark
# Processes that the tests are spread over: most of the time they wait for the server.
JOBS ?= 4
# Mutants that `make mutants`, `make prove` and `make sample` draw by chance.
MUTANTS ?= 15
# Minutes that `make campaigns` has; `make prove` runs all of them.
MINUTES ?= 5

BIN := .venv/bin
# Spark would otherwise start its workers with the first python3 on PATH.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Tests start hundreds of interpreters, each of which would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=
# Levels of setup: what the demo needs, what tests need, everything. A stamp names the checkout that it was written
# for: a copied or moved tree is set up again.
DEMO := .venv/.setup-demo
TEST := .venv/.setup-test
DEV := .venv/.setup-dev
is_foreign = $(filter-out $(CURDIR),$(shell cat $(1) 2>/dev/null || echo none))

.DEFAULT_GOAL := help
.SUFFIXES:
.PHONY: help setup demo dashboard test prove campaigns mutants sample bench lint types public-types docs build format unasync clean redo

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  PYTHON=python3  the interpreter that setup uses, 3.11 or later"
	@echo "  ROWS=5000       the flights that the demo takes"
	@echo "  ENGINE=spark    what runs the demo's stages: spark, threads or asyncio"
	@echo "  JOBS=4          the processes that the tests are spread over"
	@echo "  MINUTES=5       the time for campaigns"
	@echo "  LONG=1          the longest campaigns too, in prove; they double its time"

setup: $(DEV) ## Create .venv with everything in it; skipped while nothing has changed

.venv/.setup-%: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh $*

$(foreach stamp,$(DEMO) $(TEST) $(DEV),$(if $(call is_foreign,$(stamp)),$(eval $(stamp): redo)))

demo: $(DEMO) ## Run the flights demo on a private mongod, with a report by Spark and flights.png
	@$(BIN)/python -m examples.flights --rows $(ROWS) --engine $(ENGINE)

dashboard: $(DEMO) ## Run the flights demo without Spark, and show its data in a browser, read-only, until Ctrl-C
	@$(BIN)/python -m examples.flights --rows $(ROWS) --engine threads --no-spark --dashboard

test: $(TEST) ## Run all tests but the campaigns
	@$(BIN)/python -m pytest -m "not prove" -n $(JOBS) --dist loadgroup --durations=10

prove: $(DEV) ## Run the campaigns, and a sample of the mutants; with LONG=1 the longest campaigns as well
	@$(BIN)/python -m pytest -m prove tests/crash -n 2 # with nothing else: replica sets lose and find their primaries all the time
	@$(BIN)/python -m pytest -m "prove$(if $(LONG),, and not long)" tests/worker/test_rate_key.py # likewise: it counts the starts of a rate
	@$(BIN)/python -m pytest -m "prove$(if $(LONG),, and not long)" --ignore tests/crash --ignore tests/worker/test_rate_key.py -n $(JOBS) --dist loadgroup
	@$(BIN)/python scripts/mutants.py --jobs $(JOBS) --sample $(MUTANTS)

campaigns: $(DEV) ## Run campaigns drawn by chance, for some minutes
	@$(BIN)/python scripts/campaigns.py --jobs $(JOBS) --minutes $(MINUTES)

sample: campaigns mutants ## Run campaigns and mutants drawn by chance, as every night

mutants: $(TEST) ## Break the core in places drawn by chance, and list what no test notices
	@$(BIN)/python scripts/mutants.py --jobs $(JOBS) --sample $(MUTANTS)

bench: $(TEST) ## Measure the core beside the bare driver, as JSON
	@$(BIN)/python -m bench core

lint: $(DEV) ## Check style, layers, and that the sync shell is up to date
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m ruff format --check
	@$(BIN)/python -m ruff format --check --isolated --line-length 76 README.md docs # so that no block needs a scroll bar
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python scripts/unasync.py --check
	@$(BIN)/python scripts/check_log_fields.py

types: $(DEV) ## Check types with mypy and pyright
	@$(BIN)/python -m mypy
	@$(BIN)/python -m pyright

public-types: $(DEV) ## List what a user's type checker would have to infer
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pyright --verifytypes mongoq --ignoreexternal

docs: $(DEV) ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

build: $(DEV) ## Build the wheel and the source distribution into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation

format: $(DEV) ## Format the code and fix what can be fixed
	@$(BIN)/python -m ruff check --fix-only
	@$(BIN)/python -m ruff format
	@$(BIN)/python -m ruff format --isolated --line-length 76 README.md docs

unasync: $(DEV) ## Generate mongoq/sync, mongoq/core_threads and other code for threads
	@$(BIN)/python scripts/unasync.py

clean: ## Remove what was built, and caches; .venv stays
	@rm -rf build dist flights.png site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache spark-warehouse
	@find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
