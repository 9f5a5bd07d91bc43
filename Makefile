# Every target sets up what it needs in .venv; a second run finds it there and starts at once.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# Optimizers the tests compare with. Their dependencies are large or old and not needed for the files that are loaded.
ORACLES := pytorch-pretrained-bert pytorch_optimizer timm
# Two workers with one thread each: more threads than cores wait for one another. What depends on
# the number of threads sets it in the test.
PYTEST_ARGS ?= -n 2

bin := $(VENV)/bin
pip := $(bin)/python -m pip install --quiet --disable-pip-version-check
torch_stamp := $(VENV)/.stamp-$(TORCH)
tools_stamp := $(VENV)/.stamp-tools
# One name per way to build (see CONTRIBUTING.md): asking for another way builds again.
package_stamp := $(VENV)/.stamp-ingot$(if $(INGOT_REQUIRE_NATIVE),-native)$(if $(INGOT_PURE),-pure)
peers_stamp := $(VENV)/.stamp-peers
ecosystem_stamp := $(VENV)/.stamp-ecosystem
# triton-ascend is another package of the name triton: it must not replace the one the tests use.
ascend := $(VENV)/triton-ascend
docs_stamp := .venv-docs/.stamp
wheel_stamp := .venv-wheel/.stamp
# The declared math is compiled too, so a change to it is a change of the native core.
package_sources := pyproject.toml $(wildcard CMakeLists.txt) $(shell find csrc src/ingot/optim src/ingot/declare -type f -not -name '*.pyc' 2>/dev/null)

headline = @printf '\n== %s\n' "$(1)"

.PHONY: help demo test test-every bench docs docs-site lint asan tsan kernels kernels-ascend big fuzz soak ecosystem ecosystem-npu ecosystem-packages setup peers wheel clean

help:
	@echo 'make demo        train one small network with every optimizer: a table and out/demo.png (half a minute; the first time 2 to 5 minutes)'
	@echo 'make test        lint, format, types, the test suite, the documentation examples'
	@echo 'make test-every  the same with every combination of parameters, where `make test` runs every two of them (about an hour)'
	@echo 'make bench       time the optimizers against other implementations (up to 20 minutes)'
	@echo 'make docs        run the examples in README.md, docs/ and the docstrings; check the links'
	@echo 'make docs-site   build the documentation site into out/site: search, English and Chinese, readable without a network'
	@echo 'make lint        only lint, format and types'
	@echo 'make asan        the tests of the native core under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make tsan        every optimizer on four threads under ThreadSanitizer'
	@echo 'make kernels     compile every Triton kernel for four kinds of GPU, none needed; writes docs/kernels.md (about 10 minutes)'
	@echo 'make kernels-ascend  lower every Triton kernel for an Ascend 910B with triton-ascend, none needed (about 2 minutes)'
	@echo 'make big         a step over more than 2^31 elements; needs 13 GB of free memory'
	@echo 'make fuzz        random optimizers, tensors and changes between steps (1000 runs; FUZZ_ARGS="--runs 10000 --seed 0")'
	@echo 'make soak        200,000 steps: memory, open handles and time per step must stay flat (about 5 minutes)'
	@echo 'make ecosystem   small programs with transformers, Accelerate, Lightning and PEFT, and docs/recipes.md, in an environment of their own'
	@echo 'make ecosystem-npu  transformers and MMEngine on the simulated NPU, in an environment of their own'
	@echo 'make wheel       build a manylinux wheel into dist/ and try it where no compiler is; aarch64 too if its compiler is there'
	@echo 'make clean       remove everything the targets made, .venv included'

demo: $(package_stamp)
	$(call headline,Demo: one small network and nine optimizers)
	$(bin)/ingot demo --output out/demo.png

# The simulated NPU in processes of its own: torch takes no new device after the first backward of a process.
test: lint
	$(call headline,Test suite)
	OMP_NUM_THREADS=1 $(bin)/python -m pytest tests --ignore=tests/test_docs.py --ignore=tests/npusim --ignore=tests/npusim_programs --ignore=tests/triton_interpreter $(PYTEST_ARGS)
	$(call headline,Test suite: the kernels of Triton, interpreted)
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(bin)/python -m pytest tests/triton_interpreter $(PYTEST_ARGS)
	$(call headline,Test suite: the simulated NPU)
	OMP_NUM_THREADS=1 $(bin)/python -m pytest tests/npusim $(PYTEST_ARGS)
	$(call headline,Documentation examples)
	OMP_NUM_THREADS=1 $(bin)/python -m pytest tests/test_docs.py $(PYTEST_ARGS)
	$(call headline,All passed)

test-every:
	@$(MAKE) --no-print-directory test PYTEST_ARGS="$(PYTEST_ARGS) --every"

# The peers live in an environment of their own: what they drag in must not reach the tests.
bench:
	@$(MAKE) --no-print-directory VENV=.venv-bench peers
	$(call headline,Benchmark: up to 20 minutes; BENCH_ARGS=--quick for a few)
# DeepSpeed compiles its kernel there, and waits for ever for a lock that an interrupted run has left.
	@find .venv-bench/extensions -name lock -delete 2>/dev/null || true
	TORCH_EXTENSIONS_DIR=$(CURDIR)/.venv-bench/extensions .venv-bench/bin/ingot bench $(BENCH_ARGS)

docs: $(package_stamp)
	$(call headline,Documentation examples)
	$(bin)/python -m pytest tests/test_docs.py -v

# An environment of its own, without torch: the API reference is read from the sources, not imported.
docs-site: $(docs_stamp)
	$(call headline,Documentation site)
	.venv-docs/bin/python docs_site/assemble.py --output out/site

lint: $(package_stamp)
	$(call headline,Lint: ruff check)
	$(bin)/ruff check .
	$(call headline,Format: ruff format --check)
	$(bin)/ruff format --check .
	$(call headline,Format: clang-format --dry-run csrc)
	$(bin)/clang-format --dry-run --Werror csrc/*/*.cpp csrc/*/*.h csrc/*/*.inc tests/native/threads.cpp
	$(call headline,Types: mypy --strict src/ingot)
	$(bin)/mypy --strict src/ingot

asan: $(package_stamp)
	$(call headline,Native core under the sanitizers)
	PATH="$(CURDIR)/$(bin):$$PATH" OMP_NUM_THREADS=2 $(bin)/python tests/native/sanitize.py $(ASAN_ARGS)

tsan: $(package_stamp)
	$(call headline,Native core under ThreadSanitizer)
	PATH="$(CURDIR)/$(bin):$$PATH" cmake -S . -B build/tsan -DPython_EXECUTABLE=$(CURDIR)/$(bin)/python -DINGOT_SANITIZE=thread -DINGOT_X86=OFF > /dev/null
	PATH="$(CURDIR)/$(bin):$$PATH" cmake --build build/tsan --target threads -j2
	build/tsan/threads

# Without an accelerator: the compilers for CUDA and ROCm are in the triton package.
kernels: $(package_stamp)
	$(call headline,Kernels of Triton for sm_80 sm_90 sm_100 and gfx942)
	PYTHONPATH=tests $(bin)/python tests/compiled_kernels.py --write docs/kernels.md

kernels-ascend: $(ascend)/.stamp
	$(call headline,Kernels of Triton for Ascend)
	PYTHONPATH=$(ascend):tests $(bin)/python tests/ascend_kernels.py

big: $(package_stamp)
	$(call headline,A tensor of more than 2^31 elements)
	$(bin)/python tests/native/large_tensor.py

fuzz: $(package_stamp)
	$(call headline,Fuzzer)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(bin)/python -m fuzz $(FUZZ_ARGS)

soak: $(package_stamp)
	$(call headline,Soak)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(bin)/python -m soak $(SOAK_ARGS)

# Other people's programs live in an environment of their own, like the peers of `make bench`.
ecosystem:
	@$(MAKE) --no-print-directory VENV=.venv-ecosystem ecosystem-packages
	$(call headline,Programs that train with any torch optimizer)
	OMP_NUM_THREADS=1 .venv-ecosystem/bin/python -m pytest tests/ecosystem $(ECOSYSTEM_ARGS)
	$(call headline,Their recipes)
	OMP_NUM_THREADS=1 .venv-ecosystem/bin/python -m pytest tests/test_docs.py -k recipes $(ECOSYSTEM_ARGS)

ecosystem-npu:
	@$(MAKE) --no-print-directory VENV=.venv-ecosystem ecosystem-packages
	$(call headline,Programs on the simulated NPU)
	OMP_NUM_THREADS=1 .venv-ecosystem/bin/python -m pytest tests/npusim_programs $(ECOSYSTEM_ARGS)

ecosystem-packages: $(ecosystem_stamp)

wheel: $(wheel_stamp)
	$(call headline,Wheel for $(shell uname -m))
	rm -f dist/ingot-*.whl
	packaging/build_wheels.sh .venv-wheel $(shell uname -m)
	$(call headline,Trying it in a clean environment without a compiler)
	PYTHON=$(PYTHON) packaging/try_wheel.sh dist/ingot-*$(shell uname -m).whl $(TORCH)
	$(call headline,Wheel for aarch64)
	@if [ $(shell uname -m) = aarch64 ]; then :; \
	elif command -v aarch64-linux-gnu-g++ > /dev/null; then packaging/build_wheels.sh .venv-wheel aarch64; \
	else echo 'Left out: no cross-compiler (on Debian, apt install g++-aarch64-linux-gnu)'; fi

setup: $(package_stamp)

peers: $(peers_stamp)

$(bin)/python:
	$(call headline,Creating $(VENV) with $(PYTHON))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "The pinned development tools need Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "No venv module? On Debian: apt install python3-venv"; exit 1; }

$(torch_stamp): $(bin)/python
	$(call headline,Installing $(TORCH) (once; 200 MB for a CPU build, several GB with CUDA))
	@$(pip) $(TORCH)
	@rm -f $(VENV)/.stamp-torch*
	@touch $@

$(tools_stamp): requirements-dev.txt requirements-bench.txt $(torch_stamp)
	$(call headline,Installing the pinned tools of requirements-dev.txt (once; some 1.4 GB on disk, half of it triton))
	@$(pip) --use-pep517 -r requirements-dev.txt
	@$(pip) --no-deps --constraint requirements-bench.txt $(ORACLES)
	@touch $@

# Editable, without build isolation and with a kept build folder: only what changed is compiled again.
$(package_stamp): $(package_sources) $(tools_stamp)
	$(call headline,Building the native core and installing ingot into $(VENV))
	@$(pip) --no-build-isolation --no-deps --config-settings=build-dir=$(VENV)/build --editable .
	@rm -f $(VENV)/.stamp-ingot*
	@touch $@

$(peers_stamp): requirements-bench.txt $(package_stamp)
	$(call headline,Installing the optimizers to compare with)
	@$(pip) --use-pep517 --no-deps -r requirements-bench.txt
	@touch $@

$(ecosystem_stamp): requirements-ecosystem.txt $(package_stamp)
	$(call headline,Installing the programs of requirements-ecosystem.txt)
	@$(pip) --no-deps -r requirements-ecosystem.txt
	@touch $@

$(ascend)/.stamp: $(package_stamp)
	$(call headline,Installing triton-ascend into $(ascend))
	@$(pip) --no-deps --upgrade --target $(ascend) triton-ascend==3.2.0 pybind11==3.1.0
	@touch $@

$(docs_stamp): requirements-docs.txt
	$(call headline,Installing the pinned tools of requirements-docs.txt into .venv-docs)
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 -r requirements-docs.txt
	@touch $@

$(wheel_stamp): requirements-wheel.txt
	$(call headline,Installing the pinned tools of requirements-wheel.txt into .venv-wheel)
	@$(PYTHON) -m venv .venv-wheel
	@.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-wheel.txt
	@touch $@

clean:
	rm -rf $(VENV) .venv-* build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
