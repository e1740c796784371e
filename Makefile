# Moldau's commands. Each command first creates the environment that it needs. The machine needs only Python 3.11+,
# Java 17 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OLDEST_SPARK := .venv-spark-oldest
SEEDS ?= 200
# The suite waits for clients and JVMs for more than half of its time. So there are two processes for each of two cores.
WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup demo run test test-oldest-spark check format bench bench-peers bench-tansu simulate kills cluster-kills list-kills spark-jar docs lock clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv from the lock file

$(STAMP): requirements/dev.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@# If PYTHONDONTWRITEBYTECODE is set, each start of a node would otherwise compile 500 modules, which takes 0.5 s.
	@$(BIN)/python -m compileall -q src
	@touch $@

demo: $(STAMP) ## Kill a node in the middle of a stream; no record is lost (ARGS=--cluster shows a cluster)
	$(BIN)/python examples/demo.py $(ARGS)

run: $(STAMP) ## Run a development node in ./moldau-data (PORT=9092)
	$(BIN)/moldau dev --data moldau-data --port $(or $(PORT),9092)

test: $(STAMP) ## Run the whole test suite
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope $(ARGS)

$(OLDEST_SPARK)/.installed: requirements/spark-oldest.lock $(STAMP)
	@rm -rf $(OLDEST_SPARK)
	@$(BIN)/python -m venv $(OLDEST_SPARK)
	$(OLDEST_SPARK)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/spark-oldest.lock
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> `$(OLDEST_SPARK)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"`/zz_moldau.pth
	@touch $@

test-oldest-spark: $(OLDEST_SPARK)/.installed ## Run the tests marked every_spark on the oldest supported Spark
	$(OLDEST_SPARK)/bin/python -m pytest -m every_spark tests/pipeline $(ARGS)

check: $(STAMP) ## Check format, lint, types, calls in tests, floors, purity, defaults and names; warn about sizes and words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/check_test_calls.py
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/check_purity.py
	$(BIN)/python tools/check_defaults.py
	$(BIN)/python tools/check_size.py
	$(BIN)/python tools/check_voice.py

format: $(STAMP) ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

spark-jar: ## Build the jar that decodes records in Spark's JVM (needs Maven and Java 17)
	mvn -q -B -f java/spark/pom.xml package -DbuildDirectory=$(CURDIR)/build/spark-jar

bench: $(STAMP) ## Measure speed and memory; prints a table and writes bench/results
	$(BIN)/python -m bench $(ARGS)

bench-peers: $(STAMP) ## Run the same load against Moldau and Apache Kafka (fetches Kafka by Maven)
	$(BIN)/python tools/fetch_clients.py
	$(BIN)/python -m bench.peers $(ARGS)

bench-tansu: $(STAMP) ## Run the same load against diskless topics and Tansu on one S3 server (needs Tansu and Go)
	$(BIN)/python tools/fetch_clients.py
	$(BIN)/python -m bench.peers.tansu $(ARGS)

simulate: $(STAMP) ## Run seeded histories of a node in virtual time (SEEDS=N)
	@nodes=$$($(BIN)/python -m moldau.simulation --list) && for node in $$nodes; do \
		echo "$$node:"; $(BIN)/python -m moldau.simulation --node $$node --seeds $(SEEDS) $(ARGS) || exit 1; \
	done
	RAFT_SEEDS=$(RAFT_SEEDS) $(BIN)/python -m pytest -q tests/quorum/test_raft_simulation.py \
		tests/quorum/test_raft_voters.py
	FUZZ_SEEDS=$(FUZZ_SEEDS) $(BIN)/python -m pytest -q tests/simulation/node/test_privileged_fuzz.py

kills: $(STAMP) ## Kill a node under load and start it again (ROUNDS=N)
	KILL_ROUNDS=$(or $(ROUNDS),20) $(BIN)/python -m pytest -s tests/integration/processes/test_kills_under_load.py \
		tests/integration/processes/test_offsets_over_kills.py \
		tests/integration/processes/test_controller_kills.py $(ARGS)

cluster-kills: $(STAMP) ## Kill random nodes of a cluster under four clients' loads (MINUTES=N)
	$(BIN)/python tests/integration/cluster_kills.py --minutes $(or $(MINUTES),10) $(ARGS)

list-kills: $(STAMP) ## Kill random nodes of a cluster while transactions append to lists (MINUTES=N)
	$(BIN)/python tests/integration/list_kills.py --minutes $(or $(MINUTES),10) $(ARGS)

docs: $(STAMP) ## Rewrite the generated pages of docs/ and build the site in build/site (ARGS=--check: rewrite nothing)
	$(BIN)/python tools/generate_docs.py $(ARGS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

lock: ## Rewrite the lock file from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--group dev pyproject.toml -o requirements/dev.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		requirements/spark-oldest.in -o requirements/spark-oldest.lock

clean: ## Remove the environment and caches
	rm -rf $(VENV) $(OLDEST_SPARK) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .tools
