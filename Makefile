# elman: every command of the project. `make` alone lists them.
# Needs GNU make and a Python >= 3.11 with venv; everything else goes into .venv, at the versions
# pinned in constraints.txt. Paths are relative, so a clone may lie in a folder with spaces.
#
#   make test PYTHON=python3.13     another interpreter for a new .venv
#   make test CC=clang              another compiler for the generated kernels
#   make check PYTEST='-k gru -x'   further arguments for pytest
#   make demo ARGS='--data FILE'    further arguments for `elman train`
#   make bench SUITE=cpu            a suite of benchmarks/README.md; ARGS='--quick' as for demo

SHELL := /bin/sh
comma := ,
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
PYTEST ?=
ARGS ?=
SUITE ?= foundation

BIN := .venv/bin/python
PIP := $(BIN) -m pip --disable-pip-version-check
RUNTIME := .venv/.installed-runtime
DEV := .venv/.installed-dev
RELEASE := .venv/.installed-release
PINS := pyproject.toml constraints.txt
# Kernels for GPUs are interpreted and compiled in the tests wherever Triton has a wheel.
EXTRAS := dev$(comma)docs$(if $(filter Linux-x86_64,$(shell uname -s -m | tr ' ' -)),$(comma)gpu-dev)

LINT := $(BIN) -m ruff format --check . && $(BIN) -m ruff check .
TYPES := $(BIN) -m pyright
# A hundred processes of the tests import elman: Python keeps what it compiled of it.
unexport PYTHONDONTWRITEBYTECODE
# Two tiers of tests run everywhere; the third is asked for. See the markers in pyproject.toml.
QUICK := --once -m "not slow and not long and not gpu and not interpreted"
USUAL := -m "not long and not interpreted"
# Triton compiles, or interprets on the CPU; it decides once per process. Only files that have such
# tests are read.
INTERPRETED := TRITON_INTERPRET=1 $(BIN) -m pytest -m interpreted tests/engines/triton \
    `grep -rl --include='test_*.py' --exclude-dir=triton mark.interpreted tests`
# Each worker begins with one half, so that tests of a file share what their process has made, and
# who is done takes from the other.
TWO := -n 2 --dist worksteal
# Compiled kernels of the quick tests are kept between runs; the other targets start from none.
KEPT := ELMAN_TEST_CACHE=.cache/tests

.PHONY: help venv format lint types check test test-long golden docs notebook dist bench demo clean distclean

help:
	@echo "make venv       create .venv and install the pinned dependencies and tools"
	@echo "make demo       train a character model on this machine's own text, about two minutes"
	@echo "make check      format, lint, types, and each quick test once: two minutes on two cores"
	@echo "make test       install, lint, types and all usual tests"
	@echo "make test-long  also the tests that take minutes, with many more random cases"
	@echo "make golden     rewrite the golden texts (then read the diff)"
	@echo "make format     format the code and fix what ruff can fix"
	@echo "make docs       the documentation as a site that needs no network, in site/"
	@echo "make notebook   run the documentation's notebooks again and keep their outputs"
	@echo "make dist       build and check a release in dist/: sdist and wheel"
	@echo "make bench      measure against torch, side by side: SUITE=foundation, or another"
	@echo "make clean      remove caches and build output; distclean also removes .venv"

# --- environment -------------------------------------------------------------------------------

# The first interpreter that runs, is new enough and can make an environment.
$(BIN):
	@for p in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11 python); do \
	    if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	        >/dev/null 2>&1; then \
	        echo "creating .venv with $$("$$p" --version)"; \
	        "$$p" -m venv --clear .venv && exit 0; \
	        rm -rf .venv; exit 1; \
	    fi; \
	done; \
	echo "make: no Python >= 3.11 with the modules venv and ensurepip on the PATH."; \
	echo "      Name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3 (Debian: apt install python3-venv)"; \
	exit 1

# setuptools comes first so that elman itself is built by the pinned one, not by a second copy.
# Python compiles a module when it is first imported: compiling all of them now takes as long again.
define install
@echo "installing $(1) into .venv, once: this takes some minutes"
@$(BIN) -m pip --version >/dev/null 2>&1 || $(BIN) -m ensurepip >/dev/null
@$(PIP) install -q -c constraints.txt setuptools
@$(PIP) install -q --no-compile -c constraints.txt --no-build-isolation -e "$(1)"
endef

$(RUNTIME): $(PINS) | $(BIN)
	$(call install,.[train])
	@touch $@

$(DEV): $(PINS) | $(BIN)
	$(call install,.[$(EXTRAS)])
	@touch $(RUNTIME) $@

$(RELEASE): $(PINS) | $(BIN)
	$(call install,.[$(EXTRAS)$(comma)release])
	@touch $(RUNTIME) $(DEV) $@

venv: $(DEV)

# --- checks ------------------------------------------------------------------------------------

format: $(DEV)
	@$(BIN) -m ruff check --fix-only --quiet .
	@$(BIN) -m ruff format .

lint: $(DEV)
	@$(LINT)

types: $(DEV)
	@$(TYPES)

check: lint
	@mkdir -p .cache; $(TYPES) >.cache/types 2>&1 & types=$$!; status=0; \
	$(KEPT) $(BIN) -m pytest -q $(TWO) $(QUICK) $(PYTEST) || status=$$?; \
	wait $$types || status=1; cat .cache/types; exit $$status

# All three always run and pytest comes last, so that its summary is what one sees at the end. The
# types are checked while the interpreted tests run.
test: $(DEV)
	@mkdir -p .cache; status=0; \
	$(TYPES) >.cache/types 2>&1 & types=$$!; \
	{ $(LINT); } || status=1; \
	$(INTERPRETED) -m "interpreted and not long" -q $(TWO) $(PYTEST) || [ $$? = 5 ] || status=1; \
	wait $$types || status=1; cat .cache/types; \
	[ $$status = 0 ] || echo "lint, types or interpreted tests failed, see above; the others run nevertheless"; \
	$(BIN) -m pytest $(TWO) $(USUAL) --hypothesis-profile=ci --durations=10 $(PYTEST) || status=$$?; \
	exit $$status

test-long: $(DEV)
	@$(INTERPRETED) $(PYTEST)
	@ELMAN_CFLAGS= $(BIN) -m pytest -m "not interpreted" --hypothesis-profile=long --durations=20 --timeout=1800 $(PYTEST)

golden: $(DEV)
	@$(KEPT) $(BIN) -m pytest -q --update-golden $(PYTEST)
	@$(BIN) docs/tour.py
	@git --no-pager diff --stat -- tests/golden docs/tour.md 2>/dev/null || true

# Warnings are errors: a link that leads nowhere, a name that is not there.
docs: $(DEV)
	@$(BIN) -m sphinx -b html -W --keep-going -q docs site && echo "site/index.html"

# The notebooks are run anew, and keep what they print and plot; read the diff.
notebook: $(DEV)
	@$(BIN) docs/notebooks.py

# Of what is committed; ARGS='--base https://…/blob/v0.1.0/' tells where links of the README lead.
dist: $(RELEASE)
	@$(BIN) release/dist.py $(ARGS)

# --- use ---------------------------------------------------------------------------------------

bench: $(RUNTIME)
	@$(BIN) -m benchmarks $(SUITE) $(ARGS)

demo: $(RUNTIME)
	@.venv/bin/elman train $(ARGS)

clean:
	@rm -rf site docs/_built .cache .hypothesis .pytest_cache .ruff_cache build dist src/*.egg-info
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	@rm -rf .venv
