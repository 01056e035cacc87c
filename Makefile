# Every target makes what it needs under this folder (.venv, build/) and touches nothing outside it.
# Needed on the machine: Python 3.11 or newer with its venv module, a C++20 compiler, CMake, make.

SHELL := /bin/bash

# The first Python that runs, is new enough and can make a virtual environment.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3 python \
    /usr/bin/python3; do \
    $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    && echo $$python && break; done)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
JOBS ?= $(shell nproc)
MAKEFLAGS += --no-print-directory
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

# An editable install: Python comes from the checkout, the extension from the last build. Build
# tools are in .venv too, so that a rebuild after a change compiles what changed and no more.
INSTALL := $(PIP) install --no-build-isolation --editable
BUILD_TOOLS := "scikit-build-core>=0.11" "pybind11>=3.0" ninja

NATIVE_SOURCES := $(shell find csrc -name '*.h' -o -name '*.cc' | sort)
NATIVE_OTHERS := $(wildcard tests/native/*.h tests/native/*.cc bench/*.cc)
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(NATIVE_SOURCES)
NATIVE_BUILD := -DPYBATCHER_PYTHON=OFF -DPYBATCHER_NATIVE_TESTS=ON

# ThreadSanitizer of older compilers cannot run where addresses are randomised widely.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: help build demo test check format native sanitize wheel bench rivals clean

help:
	@echo "make demo      build pybatcher in $(VENV) and show eight callers answered together"
	@echo "make test      run the tests            (ARGS='tests/test_cli.py -k demo' narrows them)"
	@echo "make check     formatting, lint and types, changing nothing"
	@echo "make format    rewrite the sources as 'make check' wants them"
	@echo "make native    the C++ tests"
	@echo "make sanitize  the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer"
	@echo "make wheel     a wheel in dist/"
	@echo "make bench     speed of the engine alone (ARGS passes options to bench/engine.py)"
	@echo "make rivals    llama.cpp in .venv-rivals, for bench/compare.py"
	@echo "make clean     remove what the other targets made, but for the environments"

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 or newer with its venv module was found;" \
	    "install python3.11-venv or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.build-tools: | $(BIN)/python
	$(PIP) install $(BUILD_TOOLS)
	@touch $@

$(VENV)/.core: $(BUILD_INPUTS) | $(VENV)/.build-tools
	$(INSTALL) .
	@touch $@

# The exact torch of the `test` extra is resolved together with all that depends on torch: left to
# itself, pip would take the newest one.
$(VENV)/.test: pyproject.toml | $(VENV)/.core
	$(INSTALL) '.[test]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.core
	$(INSTALL) '.[dev]'
	@touch $@

build: $(VENV)/.core

demo: $(VENV)/.core
	@$(BIN)/pybatcher demo $(ARGS)

test: $(VENV)/.core $(VENV)/.test
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.core $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES) $(NATIVE_OTHERS)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(NATIVE_SOURCES) $(NATIVE_OTHERS)

native:
	cmake -S . -B build/native $(NATIVE_BUILD)
	cmake --build build/native
	ctest --test-dir build/native --output-on-failure --no-tests=error --parallel $(JOBS)

sanitize:
	cmake -S . -B build/asan $(NATIVE_BUILD) -DPYBATCHER_SANITIZE=address,undefined
	cmake --build build/asan
	ctest --test-dir build/asan --output-on-failure --no-tests=error --parallel $(JOBS)
	cmake -S . -B build/tsan $(NATIVE_BUILD) -DPYBATCHER_SANITIZE=thread
	cmake --build build/tsan --target test_thread_pool test_engine
	$(FIXED_ADDRESSES) ctest --test-dir build/tsan --output-on-failure --no-tests=error --parallel $(JOBS) \
	    --tests-regex '^test_(thread_pool|engine)$$'

wheel: $(VENV)/.build-tools
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .

bench: $(VENV)/.core
	$(BIN)/python -m bench.make_checkpoint smollm2-135m
	$(BIN)/python -m bench.engine bench/checkpoints/smollm2-135m $(ARGS)

rivals: .venv-rivals/.llama-cpp

.venv-rivals/.llama-cpp: bench/rivals.txt
	$(PYTHON) -m venv .venv-rivals
	.venv-rivals/bin/pip install --quiet "scikit-build-core>=0.11" cmake ninja
	.venv-rivals/bin/pip install --no-build-isolation -r bench/rivals.txt
	@touch $@

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
