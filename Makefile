# Every target sets itself up: the first use makes .venv and installs what the target needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 3
RUN := $(VENV)/.ready-run
DEV := $(VENV)/.ready-dev
PACKAGE := hoard_p2p tests benchmarks simulations

.DEFAULT_GOAL := help
.PHONY: help demo test soak nightly simulate check format bench bench-publish bench-mount bench-fetch bench-cluster bench-origin clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(RUN)  ## three nodes on this machine: publish, mount, compare, kill one, compare again
	@$(BIN)/hoard demo $(DATASET)

test: $(DEV)  ## all tests; what needs root or /dev/fuse and has neither is skipped with its reason
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

soak: $(DEV)  ## the long tests: minutes of killing under checked reads
	$(BIN)/pytest -m soak $(ARGS)

simulate: $(RUN)  ## made-up clusters that run the real decisions: all scenarios, or SCENARIO=coldstart ARGS=... (docs/simulations.md)
	@for scenario in $(or $(SCENARIO),paper coldstart search failures retention disagreement membership); do \
	  $(BIN)/python -m simulations $$scenario $(ARGS) || exit 1; done

nightly: $(DEV)  ## the store: 10,000 random steps, a kill at every step, a thousand power cuts, a hundred dead nodes
	HOARD_MACHINE_STEPS=10000 HOARD_KILL_EVERY=1 HOARD_POWER_CUTS=200 HOARD_POWER_SEEDS=1,2,3,4,5 HOARD_NODE_KILLS=100 HOARD_NODE_EVERY=6 \
	  $(BIN)/pytest --timeout 3600 tests/property/test_storage_machine.py tests/fault/test_storage_kills.py tests/fault/test_storage_power.py \
	  tests/fault/test_node_kills.py tests/fault/test_node_steps.py $(ARGS)

check: $(DEV)  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(PACKAGE)
	$(BIN)/lint-imports

format: $(DEV)  ## rewrite the sources the way `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-publish bench-mount bench-fetch  ## all benchmarks, with their default sizes

bench-publish: $(RUN)  ## publish against cp + b3sum of the same files
	$(BIN)/python benchmarks/publish.py $(ARGS)

bench-mount: $(RUN)  ## a mount against the native file system (docs/benchmarks.md)
	$(BIN)/python benchmarks/mount.py $(ARGS)

bench-fetch: $(RUN)  ## whole files read from a peer for the first time
	$(BIN)/python benchmarks/fetch.py $(ARGS)

bench-cluster: $(RUN)  ## nodes and the links between them, shaped (needs root, nginx, curl, b3sum)
	$(BIN)/python benchmarks/cluster.py $(ARGS)

bench-origin: $(RUN)  ## an S3 store behind a shaped link: direct, Hoard, others (needs root, tc, weed on PATH)
	$(BIN)/python benchmarks/origin.py $(ARGS)

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find hoard_p2p tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps lie inside .venv, so that removing .venv starts over.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; install Python 3.11 or newer, or: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Hoard needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1); try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "this Python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV)" >&2
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)

$(RUN): pyproject.toml | $(BIN)/python
	@echo "installing hoard" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV): pyproject.toml $(RUN)
	@echo "installing the tools for tests and checks" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test --group dev
	@touch $@
