# Every target sets up what it needs by itself: a virtual environment in .venv, made once and renewed when a
# pyproject.toml or a pin changes. Needed on the machine: Python 3.11 or newer with pip, make, git.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := core $(sort $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))) .
REQUIREMENTS := constraints.txt tests/requirements.txt $(patsubst %,%/pyproject.toml,$(PACKAGES))
PYTEST := $(BIN)/python -m pytest

.PHONY: demo test test-slow test-tpu check docs bench gpu clean help

help:
	@echo 'make demo       train a small model on two CPU processes with a plugin found in package metadata'
	@echo 'make test       the tests'
	@echo 'make test-slow  the tests that take long: fresh environments, clusters, whole matrices'
	@echo 'make check      ruff, mypy and the import contracts'
	@echo 'make docs       the tests of the documentation: each snippet and each example runs'
	@echo 'make bench      the benchmarks, as ratios beside plain torch and lightning-fabric'
	@echo 'make gpu        the tests that need a GPU, and the measurements'
	@echo 'make test-tpu   the tests of the TPU plugin, in an environment of their own'
	@echo 'make clean      remove .venv and what the tools have cached'

# --without-pip, and the machine's pip working on the new environment: so a Python without ensurepip will do, too.
$(STAMP): $(REQUIREMENTS)
	@for python in "$$PYTHON" python3.11 python3 python3.12 python3.13 python; do \
	    [ -n "$$python" ] && "$$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	    python=; \
	done; \
	[ -n "$$python" ] || { echo 'Python 3.11 or newer with pip is needed; name one by PYTHON=...' >&2; exit 1; }; \
	set -e; \
	echo "Setting up $(VENV) with $$($$python --version) (this takes a few minutes the first time) ..."; \
	[ -x $(BIN)/python ] || "$$python" -m venv --without-pip $(VENV); \
	"$$python" -m pip --python $(BIN)/python install --quiet --disable-pip-version-check \
	    -c constraints.txt -r tests/requirements.txt; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
	    -c constraints.txt $(patsubst %,-e ./%,$(PACKAGES)); \
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python docs/examples/demo.py

test: $(STAMP)
	$(PYTEST) -m 'not slow and not gpu' $(ARGS)

test-slow: $(STAMP)
	$(PYTEST) -m 'slow and not gpu' $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(PYTEST) tests/docs $(ARGS)

bench: $(STAMP)
	@set -e; for file in tests/benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file; done

# Without a network, on the machine's own Python and torch, if `tests/gpu/run pack` has been run before (docs/gpu.md).
gpu:
	@tests/gpu/run $(ARGS)

test-tpu:
	@echo 'make test-tpu: there is no TPU plugin here yet, so there is nothing to run.'

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
