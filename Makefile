# Every target sets up what it needs and does nothing twice. KVIST_VENV names another environment folder.
KVIST_VENV ?= .venv
BIN := $(KVIST_VENV)/bin
STAMP := $(KVIST_VENV)/.made-from-$(shell cat deploy/cpu-lock.txt deploy/make_env.sh pyproject.toml | sha256sum | cut -c1-16)
# Real clients from npm that tests drive; another folder may be named.
export KVIST_CLIENTS ?= $(HOME)/.cache/kvist/clients
PYTEST := $(BIN)/python -m pytest

.PHONY: env clients browser check test caches soak serve demo fuzz mutate clean
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

env: $(STAMP) ## Create the environment (.venv, or KVIST_VENV)

$(STAMP): deploy/cpu-lock.txt deploy/make_env.sh
	@bash deploy/make_env.sh $(KVIST_VENV)
	@rm -f $(KVIST_VENV)/.made-from-* && touch $@

serve: env ## Serve SmolLM2 on this machine: two real vLLM replicas behind one endpoint
	@$(BIN)/kvist serve

demo: env ## Measure what an unstable preamble and blind routing cost, and that Kvist removes it
	@$(BIN)/kvist demo

clients: ## Install Claude Code and Codex from npm (KVIST_CLIENTS) for the tests that drive them
	@bash deploy/make_clients.sh "$(KVIST_CLIENTS)"

browser: ## Find or install the headless Chromium that tests open reports with
	@bash deploy/make_browser.sh >/dev/null

check: env ## Lint, types, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

test: env check ## Everything that must be green, pytest's summary last
	@-$(MAKE) --silent clients  # without them their tests fail, and say why
	@-$(MAKE) --silent browser  # same
	@$(PYTEST) -q -n 2 --dist loadfile -m "not slow" --cov --cov-report=term:skip-covered

real: env ## The long tests between real processes: hybrid models, stopped routers, struck replicas, faults of stores
	@$(PYTEST) -q -m slow tests/real tests/e2e

caches: env ## Send a million distinct prompts (KVIST_PROMPTS) through one ingress: it must not grow
	@$(PYTEST) -q -s -m slow tests/cluster/test_bounded_caches.py

FUZZ_S ?= 60
fuzz: env ## Look for inputs that break a decoder or a parser, FUZZ_S seconds for each of 12 targets
	@set -e; for target in $$($(BIN)/python -m tests.fuzz); do \
		echo "== $$target"; $(BIN)/python -m tests.fuzz $$target -runs=-1 -max_total_time=$(FUZZ_S); done

mutate: env ## Break one guard after the other; a named test must notice each
	@$(BIN)/python -m tests.mutation

soak: env ## Simulate thousands of seeds (KVIST_SIM_SEEDS, else 2000) of ten minutes each
	@$(BIN)/python -m tests.simulation --seeds $${KVIST_SIM_SEEDS:-2000}

bench: env ## Match, store, ingest and hashing; beside Dynamo's with PEER=dynamo
	@$(BIN)/kvist bench router $(if $(PEER),--peer $(PEER)) --json out/bench_router.json

bench-ingress: env ## The way from a client to a worker and back (8 min); beside Dynamo's with PEER=dynamo
	@$(BIN)/kvist bench ingress $(if $(PEER),--peer $(PEER)) --json out/bench_ingress.json

bench-stages: env ## Where the time of a warm turn goes, each step beside its budget
	@$(BIN)/kvist bench stages --json out/bench_stages.json

swarm: env ## 200 agents on 8 simulated replicas of this machine: out/swarm.json, .csv, .jsonl and .html
	@$(BIN)/kvist swarm --local 8 --agents 200 --duration 60 --warmup 20 --slo-ttft-ms 2000 --slo-itl-ms 100

compare: env ## The same swarm on Kvist and on a peer: PEER=dynamo or PEER=ray-kv-aware, installed where they are missing
	@[ -x "$${KVIST_LAB:-$$HOME/.cache/kvist-lab}/$(PEER)/bin/python" ] || bash load_tests/peers/make_$(subst -,_,$(PEER)).sh
	@$(BIN)/python -m load_tests.peers.compare --peer $(PEER) --json out/compare_$(PEER).json

article: env ## The numbers that started this project beside Kvist and Dynamo on this machine (15 min)
	@[ -x "$${KVIST_LAB:-$$HOME/.cache/kvist-lab}/dynamo/bin/python" ] || bash load_tests/peers/make_dynamo.sh
	@$(BIN)/python -m load_tests.article --json out/article.json

clean: ## Remove what the targets made
	@rm -rf $(KVIST_VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
