# Front door. `make` alone lists the targets. Everything lands in .venv/ and build/.
#
# PYTHON=python3.12       interpreter that .venv is made from (default python3)
# TORCH_INDEX=<url>       package index for torch, and for torch only
# DATA=/path/db.zarr      database for `make demo` instead of the one it writes
# TESTS=<paths and flags> what pytest is given by `make test` and `make check`
# TORTURE_SECONDS=60, FUZZ_SECONDS=60, CHAOS_SECONDS=600   how long these run; SEED=<n> repeats a run
# BENCH_FLAGS='--quick --only get'   what is given to bench/run.py (--help lists it)
# SHORT=1                 asan, tsan, valgrind, model: the short form that CI runs

PYTHON ?= python3
JOBS ?= 2
VENV := $(CURDIR)/.venv
PY := $(VENV)/bin/python
PIP = $(PY) -m pip --disable-pip-version-check --no-input
export PATH := $(VENV)/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME
MAKEFLAGS += --no-print-directory

TORCH := $(shell sed -n 's/^torch==//p' requirements/torch.txt)

# What the installed package is made from. Folders are named too: they change with each file that
# is added or removed.
BUILD_INPUTS := $(wildcard CMakeLists.txt pyproject.toml README.md cmake/* include/sharedvector \
	include/sharedvector/* src/core src/core/* src/ext src/ext/* tools/sharedvector.c)
C_FILES = $(shell find include src tests tools examples -name '*.[ch]' 2>/dev/null | sort)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One installation at a time: pip does not expect company in a folder.
.NOTPARALLEL:
.PHONY: help demo test compare bench check lint format tidy ctest asan tsan valgrind fault fuzz \
	torture chaos interrupts mutants model rc11 coverage wheel clean distclean

help:
	@echo 'make demo      train on a Zarr database of brain volumes, two ranks, one pool'
	@echo 'make test      all tests: C (ctest) and Python (pytest)'
	@echo 'make compare   the same calls on sharedvector 0.1.0 and on this one'
	@echo 'make bench     what it costs next to 0.1.0, to others and to the machine, as ratios'
	@echo
	@echo 'For developers:'
	@echo 'make check     what every commit passes, under a minute: lint, C tests, fast Python tests'
	@echo 'make lint      formatting, ruff, mypy, stubtest, compiler warnings as errors'
	@echo 'make format    rewrite C and Python files in the house format'
	@echo 'make tidy      clang-tidy'
	@echo 'make fault     killed at every step, and every system call failing, for every verb'
	@echo 'make torture   kill -9 at random for TORTURE_SECONDS (60); SEED=n repeats'
	@echo 'make chaos     ranks, workers, producers and owners killed at random for CHAOS_SECONDS (600)'
	@echo 'make interrupts  an exception from a signal handler at every line of the verbs (an hour)'
	@echo 'make fuzz      hostile segments for FUZZ_SECONDS (60); libFuzzer where clang is'
	@echo 'make asan      C tests and extension under AddressSanitizer and UBSan'
	@echo 'make tsan      C tests under ThreadSanitizer'
	@echo 'make valgrind  C tests under valgrind'
	@echo 'make mutants   one rule at a time taken out of the core: which C test notices'
	@echo 'make model     the protocol in Spin, and the mutations that must fail'
	@echo 'make rc11      every edge weakened by itself, under the C11 memory model'
	@echo 'make coverage  line coverage of the C core'
	@echo 'make wheel     wheel and sdist in dist/'
	@echo 'make clean     remove build/ and dist/ (distclean: .venv too)'

# ---- .venv, in layers; each stamp is made once ---------------------------------------------------

$(VENV)/.venv-made: tools/check_machine.sh
	@sh tools/check_machine.sh '$(PYTHON)'
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv '$(VENV)'
	@touch $@

$(VENV)/.build-tools: requirements/build.txt | $(VENV)/.venv-made
	@echo 'installing build tools (cmake, ninja, scikit-build-core, numpy)'
	@$(PIP) install -qq -r $<
	@touch $@

$(VENV)/.torch: requirements/torch.txt | $(VENV)/.build-tools
	@echo 'installing torch $(TORCH) (CPU builds about 200 MB, PyPI'"'"'s default CUDA build about' \
		'3 GB; TORCH_INDEX=<url> picks another index)'
	@$(PIP) install -qq $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') -r $<
	@touch $@

$(VENV)/.demo-tools: requirements/demo.txt requirements/demo-data.txt | $(VENV)/.torch
	@echo 'installing what the demo needs (zarr, nibabel, the template volume of nilearn)'
	@$(PIP) install -qq -r requirements/demo.txt
	@$(PIP) install -qq --no-deps -r requirements/demo-data.txt
	@touch $@

$(VENV)/.test-tools: requirements/test.txt | $(VENV)/.torch
	@echo 'installing test tools (pytest, hypothesis, zarr, nbclient)'
	@$(PIP) install -qq -r $<
	@touch $@

$(VENV)/.lint-tools: requirements/lint.txt | $(VENV)/.test-tools
	@echo 'installing lint tools (ruff, mypy, clang-format)'
	@$(PIP) install -qq -r $<
	@touch $@

$(VENV)/.bench-tools: requirements/bench.txt | $(VENV)/.build-tools
	@$(PIP) install -qq -r $<
	@touch $@

# The package itself: the extension goes into .venv, Python files are used from the tree.
$(VENV)/.package: $(BUILD_INPUTS) | $(VENV)/.build-tools
	@echo 'building the extension'
	@$(PIP) install -qq --no-build-isolation --no-deps -e .
	@touch $@

# ---- for everybody -----------------------------------------------------------------------------

demo: $(VENV)/.demo-tools $(VENV)/.package
	@$(PY) examples/demo/demo.py $(if $(DATA),--data '$(DATA)')

test: $(VENV)/.demo-tools $(VENV)/.test-tools $(VENV)/.package
	@PYTHON='$(PY)' JOBS='$(JOBS)' sh tools/run_tests.sh $(TESTS)

compare: $(VENV)/.build-tools
	@$(PY) tools/compare.py

bench: $(VENV)/.bench-tools
	@$(PY) bench/run.py $(BENCH_FLAGS)

# ---- for developers ----------------------------------------------------------------------------

check: lint
	@PYTHON='$(PY)' JOBS='$(JOBS)' sh tools/run_tests.sh -m 'not slow' $(TESTS)

lint: $(VENV)/.lint-tools $(VENV)/.package
	@PYTHON='$(PY)' JOBS='$(JOBS)' sh tools/run_lint.sh

format: $(VENV)/.lint-tools
	@$(PY) -m ruff check -q --fix . ; $(PY) -m ruff format -q .
	@clang-format -i $(C_FILES)

tidy: $(VENV)/.lint-tools $(VENV)/.package
	@cmake --preset dev >/dev/null
	@clang-tidy --quiet -p build/dev $(filter src/core/%.c tests/c/%.c tools/%.c,$(filter %.c,$(C_FILES)))

ctest: $(VENV)/.build-tools
	@cmake --preset dev >/dev/null
	@cmake --build --preset dev -j $(JOBS)
	@ctest --preset dev -j $(JOBS)

# Each of these writes build/results/<target>.xml, which CI counts (docs/TESTING.md).
RUN_STEP = sh tools/run_step.sh

fault: $(VENV)/.build-tools
	@JOBS='$(JOBS)' sh tools/run_c_tests.sh fault dev -L fault

torture: $(VENV)/.build-tools
	@JOBS='$(JOBS)' $(RUN_STEP) torture sh tools/run_torture.sh

interrupts: $(VENV)/.test-tools $(VENV)/.package
	@$(RUN_STEP) interrupts $(PY) tests/python/test_interrupts.py

chaos: $(VENV)/.torch $(VENV)/.package
	@$(RUN_STEP) chaos $(PY) tests/chaos/chaos.py

fuzz: $(VENV)/.build-tools
	@JOBS='$(JOBS)' $(RUN_STEP) fuzz sh tools/run_fuzz.sh

asan tsan: $(if $(SHORT),$(VENV)/.build-tools,$(VENV)/.test-tools $(VENV)/.package)
	@PYTHON='$(PY)' JOBS='$(JOBS)' SHORT='$(SHORT)' sh tools/run_sanitized.sh $@

valgrind: $(VENV)/.build-tools
	@JOBS='$(JOBS)' SHORT='$(SHORT)' sh tools/run_valgrind.sh

mutants: $(VENV)/.build-tools
	@JOBS='$(JOBS)' $(RUN_STEP) mutants $(PY) tests/c/mutants.py

model: $(VENV)/.build-tools
	@PYTHON='$(PY)' $(RUN_STEP) model sh -c \
		'sh models/run.sh $(if $(SHORT),--quick) || { s=$$?; [ $$s -ne 2 ] || s=77; exit $$s; }'

rc11: $(VENV)/.build-tools
	@$(RUN_STEP) rc11 $(PY) tools/rc11.py

coverage: $(VENV)/.lint-tools
	@find build/coverage -name '*.gcda' -delete 2>/dev/null || true
	@JOBS='$(JOBS)' sh tools/run_c_tests.sh coverage coverage
	@$(PY) -m gcovr --root . --filter src/core/ --merge-mode-functions=separate \
		--fail-under-line 95 build/coverage

wheel: $(VENV)/.lint-tools
	@$(PY) -m build --no-isolation --outdir dist .

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(VENV)/.package

distclean: clean
	rm -rf .venv
