# Every target works on a fresh machine: it lists missing programs, installs everything else, and runs.
# Standard output belongs to the last command (make demo ARGS=--json prints one object); all else goes to standard error.

MAKEFLAGS += --no-print-directory
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test test-all durations lint unit integration conformance pipeline chaos test-long bench bench-check docs lock clean ready-demo ready-test ready-long

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
IN_PROCESS = tests/integration/in_process
UNIT_TESTS = tests/unit tests/drills tests/tools tests/benchmarks $(IN_PROCESS)
PYTEST = $(BIN)/python -m pytest $(ARGS)
# Tests without servers run on all cores; a debugger needs one process: ARGS="-n 0 --pdb"
ALL_CORES = $(BIN)/python -m pytest --numprocesses auto --dist worksteal $(ARGS)
# Tests with servers mostly wait: tests that only compute run in the idle time of those.
RUN_IDLE = $(BIN)/python -m tools.run_idle
SERVER_TESTS = tests/integration tests/conformance tests/hostile tests/pipeline tests/spark_crosscheck tests/chaos
WITH_SERVERS = $(SERVER_TESTS) --ignore=$(IN_PROCESS)
export PYTHON
export NO_MKDOCS_2_WARNING = 1
# If Python may not write its bytecode, each member compiles all of fleet/ when it starts.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/build/bin:$(CURDIR)/build/prometheus/bin:$(PATH)

help: ## List all targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'
	@echo 'ARGS="…" is passed on, for example: make demo ARGS="--rounds 4 --kill leader", make unit ARGS="-k assign"'

demo: ready-demo ## Run three brokers, three proxies and real clients; kill a proxy, show the takeover, audit the records
	@$(BIN)/python -m fleet demo $(ARGS)

test: ## Run lint, types, unit tests, and a test of each promise against real Kafka: 15 minutes
	@echo 'make test: 12 minutes on a quiet machine with two cores, up to 30 on a slow one' >&2
	@$(MAKE) lint
	@$(ALL_CORES) --size=test --durations=10 $(UNIT_TESTS)
	@$(RUN_IDLE) build/computed.txt $(ALL_CORES) --size=test --timeout=3600 tests/property -- \
	 $(PYTEST) --size=test --durations=20 $(WITH_SERVERS)

SHARDS = -m tools.shards run $(or $(SHARD),all)
test-all: ## Run every test but those of test-long, in shards of a quarter of an hour: SHARD=2/4
	@$(PYTHON) $(SHARDS) --announce
	@$(MAKE) lint
	@$(BIN)/python $(SHARDS) --pytest="$(ARGS)" $(if $(END_BY),--end-by=$(END_BY))

durations: ## Copy the durations that test-all measured to tests/durations.json, which decides the shards
	@$(PYTHON) -m tools.shards keep

lint: ready-test ## Check style, types, import contracts, and that generated files are up to date
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/gen_tables.py --check build/kafka/definitions/kafka-clients-*.jar
	@$(BIN)/python tools/gen_dashboard.py --check
	@$(BIN)/python -m tools.gen_schemas --check
	@$(BIN)/python -m tools.gen_reference --check
	@$(BIN)/python -m tools.banned_words

unit: ready-test ## Run unit and property tests, and tests that open sockets without Kafka
	@$(ALL_CORES) $(UNIT_TESTS) tests/property

integration: ready-test ## Run tests against real Kafka, with third-party clients
	@$(PYTEST) tests/integration --ignore=$(IN_PROCESS)

conformance: ready-test ## Test every API and version of Kafka through a fleet; with ARGS, print a report: ARGS=--json
	@$(if $(strip $(ARGS)),$(BIN)/python -m tests.conformance $(ARGS),$(PYTEST) tests/conformance)

chaos: ready-test ## Run tests that break members and networks; with ARGS, seeded runs: ARGS="--runs 5 --seed 1 --json"
	@$(if $(strip $(ARGS)),$(BIN)/python -m tests.chaos.seeded $(ARGS),$(PYTEST) tests/chaos)

# Finished runs are not repeated as long as fleet/ is unchanged.
CODE = $(shell (git rev-parse HEAD:fleet; git diff HEAD -- fleet) 2>/dev/null | git hash-object --stdin | cut -c1-12)
test-long: ready-long ## Run 220 seeded chaos runs, reported in docs/reliability.md: hours; other numbers: ARGS="--runs 20"
	@$(BIN)/python -m tests.onboarding --json > build/newcomer.json && cp build/newcomer.json docs/newcomer.json
	@$(BIN)/python -m pytest -s --size=test-long tests >&2
	@$(BIN)/python -m pytest tests/spark_crosscheck --kills 5 >&2
	@$(BIN)/python -m pytest tests/chaos/test_rolling.py --members 5 >&2
	@$(BIN)/python -m tests.chaos.seeded.spark_check --seed 1 --runs 20 --outages --report docs/spark-crosscheck.md >&2
	@$(BIN)/python -m benchmarks.pipeline stream --minutes 30 --json > build/stream.json && cp build/stream.json docs/stream.json
	@$(BIN)/python -m benchmarks.full_load --minutes 10 --json > build/loaded.json && cp build/loaded.json docs/loaded.json
	@$(BIN)/python -m tests.raft_long --schedules 10000 >&2
	@$(BIN)/python -m tests.fuzz --inputs 10000000 --keep --json > build/fuzz.json && cp build/fuzz.json docs/fuzz.json
	@$(BIN)/python -m tests.hostile --connections 100000 --json > build/hostile.json && cp build/hostile.json docs/hostile.json
	@$(BIN)/python -m tests.chaos.seeded --runs 220 --seed 1 --results build/chaos-$(CODE).jsonl --report docs/reliability.md $(ARGS)
	@cp build/chaos-$(CODE).jsonl docs/reliability.jsonl

pipeline: ready-test ## Run tests of the data pipeline; with ARGS, a chaos run that Spark also audits: ARGS="--seed 3 --json"
	@$(if $(strip $(ARGS)),$(BIN)/python -m tests.chaos.seeded.spark_check $(ARGS),$(PYTEST) tests/pipeline tests/spark_crosscheck)

bench: ready-test ## Measure CPU and latency, compared with HAProxy
	@$(BIN)/python -m benchmarks $(ARGS)

bench-check: ready-test ## Count instructions, allocations, copies and system calls of a frame; compare with the baseline
	@$(BIN)/python -m benchmarks.instruction_counts $(ARGS)

docs: ready-test ## Build the handbook as a site, build/site/index.html, and check its links
	@$(BIN)/python -m mkdocs build --quiet $(ARGS)
	@echo build/site/index.html

lock: ## Resolve the dependencies into requirements/*.lock again
	@$(PYTHON) -m tools.bootstrap lock

clean: ## Remove everything that make installed or built
	@rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache kafka_proxy_fleet.egg-info

ready-demo:
	@tools/prerequisites.sh demo && $(PYTHON) -m tools.bootstrap demo

ready-test:
	@tools/prerequisites.sh test && $(PYTHON) -m tools.bootstrap test

ready-long:
	@tools/prerequisites.sh test && $(PYTHON) -m tools.bootstrap long
