# Two commands for a newcomer: `make demo` and `make test`. Both need Python 3.11+ and make alone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NAMESPACE := build/namespace/millstream
PACKAGES := processor connectors gpu_offload loadgen

# The Python of the image that wheels are fetched for, and the C libraries that wheels may have been made for.
WHEELS_PYTHON ?= 3.11
WHEELS_MACHINE ?= $(shell uname -m)
WHEELS_FOR := $(foreach glibc,5 12 17 24 26 27 28 31 34 35,--platform manylinux_2_$(glibc)_$(WHEELS_MACHINE))
BASE_ARCHIVE := build/container/base.tar

.PHONY: demo test test-container wheels check bench load-test sim many-nodes chaos regret gpu-bench setup format clean

demo: setup
	$(BIN)/millstream demo

test: setup
	$(BIN)/pytest

# Apart from `test`: it installs Debian packages where they are missing, and so needs root.
test-container: setup wheels
	tests/container/prepare $(BASE_ARCHIVE)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[container]'
	$(BIN)/pytest tests/container

# All that an image is made of, so that it can be built without a network and twice alike.
wheels: setup
	rm -f deploy/wheels/*.whl
	$(BIN)/pip download --quiet --disable-pip-version-check --dest deploy/wheels --only-binary=:all: \
	    --python-version $(WHEELS_PYTHON) --implementation cp $(WHEELS_FOR) --platform manylinux2014_$(WHEELS_MACHINE) \
	    $$($(BIN)/python -c 'import tomllib; all = tomllib.load(open("pyproject.toml", "rb")); print(*(line.split(";")[0] for line in all["build-system"]["requires"] + all["project"]["dependencies"]))')

check: setup $(NAMESPACE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(foreach package,$(PACKAGES),-p millstream.$(package))
	cd build/namespace && ../../$(BIN)/lint-imports --no-cache ../../.importlinter

bench: setup
	$(BIN)/python -m millstream.loadgen.bench

load-test: setup
	$(BIN)/python -m millstream.loadgen.load_test

# Again with one seed: SIM="--seed 17 --trace"
sim: setup
	$(BIN)/python tests/simulation/run.py $(SIM)

many-nodes: setup
	$(BIN)/python -m millstream.loadgen.many_nodes

# Root for network namespaces and CPU quotas; CHAOS="--rows 1,2 --level idle --rounds 10" chooses.
chaos: setup
	$(BIN)/python -m millstream.loadgen.chaos $(CHAOS)

# The planner against an oracle, in virtual time; REGRET="--trace bursts --seed 8" chooses.
regret: setup
	$(BIN)/python -m millstream.loadgen.regret $(REGRET)

# Needs a GPU and one of the extras gpu-cu12 and gpu-cu13; GPU_BENCH="--only E3" chooses.
gpu-bench: setup
	$(BIN)/python -m millstream.loadgen.gpu_bench $(GPU_BENCH)

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
