# Every target sets up what it needs by itself: a virtual environment in .venv, made once and renewed when a
# pyproject.toml or a pin changes. Needed on the machine: Python 3.11 or newer with pip, make, git.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

# Plugins that bring a large library of somebody else's are installed in an environment of their own, .venv-extras.
folders = $(sort $(patsubst %/pyproject.toml,%,$(wildcard $(1))))
LARGE := $(filter plugins/deepspeed plugins-contrib/%,$(call folders,plugins/*/pyproject.toml plugins-contrib/*/pyproject.toml))
PACKAGES := core $(filter-out $(LARGE),$(call folders,plugins/*/pyproject.toml)) .
EXTRAS := .venv-extras
EXTRAS_STAMP := $(EXTRAS)/.installed
# The two runtimes for TPUs can't be in one environment: torch_xla is made for an older torch, and for Python up to 3.12.
XLA := .venv-xla
TPU := .venv-tpu
TPU_TESTS := tests/plugins/tpu
TPU_PACKAGES := core $(addprefix plugins/,ddp fsdp generic precision tpu)
space := $(subst ,, )

# Machines made for containers set these. Without a buffer each word of a print is a write of its own, and two ranks'
# words mix in one line; without bytecode every process compiles every module again.
unexport PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-tpu check docs bench gpu clean help

help:
	@echo 'make demo       train a small model on two CPU processes with a plugin found in package metadata'
	@echo 'make test       the tests'
	@echo 'make test-slow  the tests that take long: fresh environments, clusters, whole matrices'
	@echo 'make check      ruff, mypy and the import contracts'
	@echo 'make docs       the tests of the documentation: each snippet and each example runs'
	@echo 'make bench      the benchmarks, as ratios beside plain torch and lightning-fabric'
	@echo 'make gpu        the tests that need a GPU, and the measurements'
	@echo 'make test-tpu   the tests of the TPU plugin on torch_xla and on TorchTPU, in an environment for each'
	@echo 'make clean      remove the environments and what the tools have cached'

# $(call environment,FOLDER,REQUIREMENTS,PACKAGES[,CONSTRAINTS[,NEWEST PYTHON]]) makes or renews a virtual environment.
# --without-pip, and the machine's pip working on the new environment: so a Python without ensurepip will do, too.
define environment
@for python in "$$PYTHON" python3.11 python3 python3.12 python3.13 python; do \
    [ -n "$$python" ] && "$$python" -c 'import sys, pip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $(or $(5),99)))' \
        2>/dev/null && break; \
    python=; \
done; \
[ -n "$$python" ] || { echo 'Python 3.11 $(if $(5),to 3.$(5),or newer) with pip is needed; name one by PYTHON=...' >&2; exit 1; }; \
set -e; \
echo "Setting up $(1) with $$($$python --version) (this takes a few minutes the first time) ..."; \
[ -x $(1)/bin/python ] || "$$python" -m venv --without-pip $(1); \
"$$python" -m pip --python $(1)/bin/python install --quiet --disable-pip-version-check \
    -c $(or $(4),constraints.txt) $(patsubst %,-r %,$(2)); \
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
    -c $(or $(4),constraints.txt) $(patsubst %,-e ./%,$(3)); \
touch $(1)/.installed
endef

$(STAMP): constraints.txt tests/requirements.txt $(patsubst %,%/pyproject.toml,$(PACKAGES))
	$(call environment,$(VENV),tests/requirements.txt,$(PACKAGES))

$(EXTRAS_STAMP): constraints.txt tests/requirements.txt tests/extras-requirements.txt \
                 $(patsubst %,%/pyproject.toml,$(PACKAGES) $(LARGE))
	$(call environment,$(EXTRAS),tests/requirements.txt tests/extras-requirements.txt,$(PACKAGES) $(LARGE))

$(XLA)/.installed $(TPU)/.installed: .venv-%/.installed: $(TPU_TESTS)/requirements-%.txt \
                                     $(patsubst %,%/pyproject.toml,$(TPU_PACKAGES))
	$(call environment,.venv-$*,$<,$(TPU_PACKAGES),$<,$(if $(filter xla,$*),12))

demo: $(STAMP)
	$(BIN)/python docs/examples/demo.py

test: $(STAMP)
	$(PYTEST) -m 'not slow and not gpu and not extras and not xla and not tpu' $(ARGS)

test-slow: $(STAMP) $(EXTRAS_STAMP)
	$(PYTEST) -m 'slow and not gpu and not extras and not xla and not tpu' $(ARGS)
	$(EXTRAS)/bin/python -m pytest -m 'extras and not gpu and not xla and not tpu' $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=$(subst $(space),:,$(patsubst %,%/src,$(LARGE))) $(BIN)/lint-imports

docs: $(STAMP)
	$(PYTEST) -m 'not extras' tests/docs $(ARGS)

bench: $(STAMP)
	@set -e; for file in tests/benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file; done

# Without a network, on the machine's own Python and torch, if `tests/gpu/run pack` has been run before (docs/gpu.md).
gpu:
	@tests/gpu/run $(ARGS)

# torch_xla on its CPU device, and TorchTPU without a TPU: what of each can be shown without hardware.
test-tpu: $(XLA)/.installed $(TPU)/.installed
	PJRT_DEVICE=CPU $(XLA)/bin/python -m pytest -m xla $(TPU_TESTS) $(ARGS)
	$(TPU)/bin/python -m pytest -m tpu $(TPU_TESTS) $(ARGS)

clean:
	rm -rf $(VENV) $(EXTRAS) $(XLA) $(TPU) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
