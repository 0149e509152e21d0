# The short commands. Each sets up what it needs; a second run is fast.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

PACKAGE := layers/tarry/python/tarry
# The tests' own tools: whatever is no test. What a test function does is shown by running it.
HELPERS := $(shell find tests -name '*.py' ! -name 'test_*' ! -path 'tests/typing/*' ! -path 'tests/facts/*')
TYPED   := $(PACKAGE) functions tests/typing tests/facts $(HELPERS)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export SAM_CLI_TELEMETRY := 0
# Empty means off: without compiled files each run, and each process it starts, compiles everything again.
export PYTHONDONTWRITEBYTECODE :=
export AWS_DEFAULT_REGION ?= us-east-1

.DEFAULT_GOAL := help
.PHONY: help setup run test simulate soak check format docs bench build aws-facts lock clean

help:
	@echo "make run     the sample orders, end to end, on this machine: two hours in two seconds"
	@echo "make test    the checks and all tests"
	@echo "make simulate SEEDS=20000   the campaign of tests/simulation with more seeds; SEED=123: one of them, told"
	@echo "make soak MESSAGES=100000   so many messages in batches of 10 to 10,000, with failures, timeouts and crashes"
	@echo "make check   lint, format, types, import rules"
	@echo "make format  put the code in shape"
	@echo "make docs    write the generated pages of docs/reference"
	@echo "make bench   time a message, beside Powertools and a bare loop, and 100,000 in the sandbox"
	@echo "make build   validate the template and build what is deployed"
	@echo "make aws-facts  what SQS and Lambda do: seen in the simulator and moto, with STACK=... also at AWS"
	@echo "make lock    resolve the newest versions into constraints.txt"
	@echo "make clean   remove everything make has made"

setup: $(READY)

run: $(READY)
	@$(BIN)/tarry local --event events/orders.json --skip-time

test: check
	@$(BIN)/pytest -q -n auto --dist worksteal

SEEDS ?= 5000

simulate: $(READY)
	@$(BIN)/python -m tests.simulation.campaign $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

MESSAGES ?= 100000

soak: $(READY)
	@$(BIN)/python -m tests.soak --messages $(MESSAGES)

check: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary $(TYPED)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/pyright --warnings tests/typing

format: $(READY)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

docs: $(READY)
	@$(BIN)/python -m tests.reference

bench: $(READY)
	@$(BIN)/python benchmarks/batch.py
	@$(BIN)/python benchmarks/deliveries.py

build: $(READY)
	@$(BIN)/sam validate --lint
	@$(BIN)/sam build

# The default region from above is not for the real AWS, where a profile may name another.
aws-facts: $(READY)
	@$(if $(filter file,$(origin AWS_DEFAULT_REGION)),env -u AWS_DEFAULT_REGION) $(BIN)/python -m tests.facts \
	    $(if $(STACK),--stack $(STACK)) $(if $(YES),--yes) $(if $(SLOW),--slow) $(if $(ONLY),--only $(ONLY))

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) what the project needs (about a minute the first time)"
	@$(BIN)/python -m pip install -qq --constraint constraints.txt "pip>=25.1"
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.13")'
	@$(PYTHON) -m venv $(VENV)

# A venv of its own, so that nothing left over from before gets locked.
lock:
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install -qq --upgrade pip
	@build/lock/bin/python -m pip install -qq --editable ".[all]" --group dev
	@{ echo "# Exact versions of everything the project is developed and tested with, for Python 3.11 to 3.13."; \
	   echo "# Made by 'make lock' on the oldest of them; do not edit."; \
	   build/lock/bin/python -m pip freeze --all --exclude-editable; } > constraints.txt
	@rm -rf build/lock
	@echo "constraints.txt: $$(grep -c == constraints.txt) packages locked"

clean:
	rm -rf $(VENV) .aws-sam build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
