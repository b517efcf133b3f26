# Headrace: the commands. `make help` lists them.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
# Tests that compute in one process; the others start clusters, and want the machine to themselves.
SIDE_BY_SIDE := tests/unit tests/kernels tests/oracle \
	$(wildcard tests/contract/test_*engine*.py tests/contract/test_*kernels*.py tests/contract/test_*model*.py) \
	$(wildcard tests/deploy/test_helm_[!s]*.py tests/deploy/test_dash*.py)

.DEFAULT_GOAL := help
.PHONY: help install up test check proto tree oracle bench performance chaos soak gpu images clean

help:  ## list these commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/  \1\t\2/' | expand -t 15

$(VENV)/.installed: pyproject.toml setup.py $(wildcard kernels/headrace_kernels/csrc/*)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "install  packages into $(VENV) (the first time this takes minutes: torch is large)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch>=2.13,<2.14'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed  ## everything needed to run and to develop, in .venv

up: install  ## a whole cluster on this machine; Ctrl-C drains and stops it
	@exec $(BIN)/headrace up $(ARGS)

test: install  ## the whole test suite; ARGS: some of it, as pytest takes them
ifdef ARGS
	$(BIN)/pytest $(ARGS)
else
	@trap 'exit 130' INT; failed=0; \
	$(BIN)/pytest --numprocesses 2 --dist loadfile $(SIDE_BY_SIDE) || failed=1; \
	$(BIN)/pytest tests $(SIDE_BY_SIDE:%=--ignore=%) || failed=1; \
	exit $$failed
endif

check: install  ## style, types, layers, budgets, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/pytest tests/house

proto: install  ## generate services/headrace/rpc/v1 from proto/
	$(BIN)/python proto/generate.py

tree: install  ## bring the README's tree up to date
	$(BIN)/python tests/house/tree.py --write

oracle: install  ## make the reference tokens anew with transformers (minutes)
	PYTHONPATH=tests $(BIN)/python tests/oracle/make_reference.py $(ARGS)

bench: install  ## time to the first token, hand-offs against bare links, sampling, batch invariance
	PYTHONPATH=tests $(BIN)/python tests/bench/first_token.py
	$(BIN)/headrace bench handoff
	PYTHONPATH=tests $(BIN)/python tests/bench/sampler.py
	PYTHONPATH=tests $(BIN)/python tests/bench/batch_invariant.py

performance: install  ## the tables of docs/performance.md, on a quiet machine; PEERS_KIT, PEERS: other servers too
	PYTHONPATH=tests $(BIN)/python tests/bench/performance.py $(ARGS)

chaos: install  ## the fault matrix on real processes (most of an hour; partitions: root, iproute2); ARGS=--subset=ci: minutes
	$(BIN)/headrace chaos --report=docs/chaos.md $(ARGS)

soak: install  ## thousands of requests under cancels, deaths and drains (minutes; partitions: root, iproute2); ARGS=--link=tcp
	$(BIN)/headrace soak --report=docs/soak.md $(ARGS)

gpu: install  ## every kernel on a CUDA machine: tests, oracle tests, and a table of speeds
	PYTHONPATH=tests $(BIN)/python tests/bench/gpu.py

images:  ## check that both images build and start, as root (minutes, 6 GB; buildah, debootstrap); KEEP=1 leaves them
	deploy/build_images.sh $(ARGS)

clean:  ## remove .venv and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
