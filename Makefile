# Two commands for a newcomer: `make demo` and `make test`. Both need Python 3.11+ and make alone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NAMESPACE := build/namespace/millstream
PACKAGES := processor connectors gpu_offload loadgen

.PHONY: demo test check bench setup format clean

demo: setup
	$(BIN)/millstream demo

test: setup
	$(BIN)/pytest

check: setup $(NAMESPACE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(foreach package,$(PACKAGES),-p millstream.$(package))
	cd build/namespace && ../../$(BIN)/lint-imports --no-cache ../../.importlinter

bench: setup
	$(BIN)/python -m millstream.loadgen.bench

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "millstream needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another with: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[broker,test,check]'
	touch $@

# The checkers read the packages under the name that they are installed as.
$(NAMESPACE):
	mkdir -p $(NAMESPACE)
	for package in $(PACKAGES); do ln -sfn ../../../$$package $(NAMESPACE)/$$package; done

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
