# Everything a newcomer needs: `make run` to watch a pipeline being killed and recover, `make test` to check it all.
SHELL := /bin/bash
.DEFAULT_GOAL := help
ROOT := $(CURDIR)
BIN := .venv/bin
# Nothing is written outside the project folder.
export TMPDIR := $(ROOT)/.local/tmp
export UV_CACHE_DIR := $(ROOT)/.local/uv
export GX_ANALYTICS_ENABLED := false

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: .local/ready ## virtual environment from locked requirements, Java, Airflow's database, compiled kernels

.local/ready: requirements.lock pyproject.toml scripts/setup
	@scripts/setup
	@touch $@

run: setup ## the main job: recovery drill through Airflow on the example pipeline
	@$(BIN)/reprise drill examples/card_probing.yaml --airflow

test: setup browser lint types ## lint, types and all tests
	@$(BIN)/python -m pytest -q

browser:
	@scripts/browser

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

up: setup ## a real Airflow on 127.0.0.1:8080 (PORT=... for another) with the DAGs loaded; Ctrl-C ends it
	@scripts/up

bench: setup ## measure the bars and compare
	@$(BIN)/reprise bench loop && $(BIN)/reprise bench engine && $(BIN)/reprise bench scale && $(BIN)/reprise bench peers

campaign: setup ## 400 drills with faults drawn from a seed, and 20,000 simulated ones (about an hour)
	@$(BIN)/reprise campaign --runs 400 --parallel 2 --simulate 20000

soak: setup ## the property tests with 40 times as many random cases: 200,000 of the whole language (about an hour)
	@REPRISE_SOAK=1 $(BIN)/python -m pytest -q tests/cep tests/recovery --timeout 14400

bars: setup ## what Airflow itself may do wrong, in a real one: killed scheduler and tasks, overlapping backfills (about 6 minutes)
	@$(BIN)/python -m pytest -q -m bars tests/test_airflow_bars.py

cluster: setup ## docker/compose.yaml as processes on loopback: PostgreSQL, Airflow, Spark standalone; a worker is killed (about 3 minutes)
	@$(BIN)/python -m pytest -q -n 0 -m cluster tests/test_cluster.py

capacity: setup ## docs/capacity.md, from the costs that were measured last (bench/capacity.json)
	@$(BIN)/python -m bench.capacity

oracle: setup ## compare with Flink's MATCH_RECOGNIZE and CEP, in an environment of its own
	@scripts/oracle

lock: setup ## resolve requirements.in anew into requirements.lock
	@$(BIN)/uv pip compile -q --upgrade --no-emit-index-url --no-header --no-annotate requirements.in -o requirements.lock

reference: setup ## docs/reference.md, from the code
	@$(BIN)/python -m scripts.reference

format: setup ## format the code
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

clean: ## remove the virtual environment and everything that was made
	rm -rf .venv .local

.PHONY: help setup run test browser lint types up bench campaign soak bars cluster capacity oracle lock format reference clean
