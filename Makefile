# Everything a person or a machine does with this repository. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
SOURCES := sdk services worker tests benchmarks examples scripts
NODES ?= 3
export OMP_NUM_THREADS ?= 1

.PHONY: help install proto openapi format lint typecheck test test-units test-processes test-all web up down demo docs check \
	protocheck constraints

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv and install everything (a CPU build of torch unless an NVIDIA driver is there or ACCELERATOR=cuda)

$(STAMP): pyproject.toml constraints.txt scripts/install.sh
	@VENV=$(VENV) bash scripts/install.sh
	@touch $@

proto: $(STAMP) ## format the protocol and generate its Python code into sdk/planaria/api
	$(BIN)/buf format --write protos
	$(PY) scripts/generate_protos.py

openapi: $(STAMP) ## write the description of REST to services/coordinator/openapi.json
	$(PY) scripts/generate_openapi.py

format: $(STAMP) ## rewrite Python and protos in the house style
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/buf format --write protos

lint: $(STAMP) protocheck ## style, spelling, import contracts and protos
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/typos
	$(PY) scripts/check_files.py

protocheck: $(STAMP)
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos
	PATH="$(abspath $(BIN)):$$PATH" bash scripts/check_breaking.sh
	$(PY) scripts/generate_protos.py --check

typecheck: $(STAMP) ## mypy --strict
	$(BIN)/mypy

test: test-units test-processes ## every test but the slow ones and those for a GPU

test-units: $(STAMP) # several at once: they share nothing
	$(BIN)/pytest -m "not slow and not gpu" -n logical --maxprocesses 4 tests/unit $(PYTEST_ARGS)

test-processes: $(STAMP) # two files at a time: processes wait for each other most of the time
	$(BIN)/pytest -m "not slow and not gpu" -n 2 --dist loadfile tests/integration tests/e2e $(PYTEST_ARGS)

test-all: $(STAMP) ## every test this machine can run
	$(BIN)/pytest $(PYTEST_ARGS)

web: ## check, test and build the page into web/dist (needs Node 20.19+)
	@bash scripts/web.sh check

up: $(STAMP) ## a whole cluster on this machine: make up NODES=3
	$(BIN)/planaria up --nodes $(NODES)

down: $(STAMP) ## stop what `make up` started
	$(BIN)/planaria down

demo: $(STAMP) ## train, lose nodes, go on, and prove the result: make demo [DATA='/path/*.txt'] [STEPS=60]
	@bash scripts/web.sh build --optional
	@$(PY) examples/demo.py $(if $(DATA),--data '$(DATA)') $(if $(STEPS),--steps $(STEPS))

docs: $(STAMP) ## build the documentation into site/
	$(PY) scripts/generate_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint typecheck web docs ## everything but the tests: style, types, import contracts, protos, page, documentation

constraints: $(STAMP) ## pin in constraints.txt what this venv holds
	$(PY) scripts/pin_constraints.py
