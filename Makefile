# The commands of this repository. Each makes .venv and installs what it needs, once.
#
#   make demo     watch a real network train, on this machine
#   make test     run the tests
#   make check    format, lint and types
#
# PYTHON=python3.12      another interpreter (3.11 or newer)
# TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                        torch from that index: its CPU build, on a machine without a GPU

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test check clean

demo: $(INSTALLED)
	@$(BIN)/headrace demo

test: $(INSTALLED)
	@$(BIN)/python -m pytest

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV)

# Build tools come first and from the same pins, so that nothing is resolved behind our back.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "headrace needs Python 3.11 or newer; \`$(PYTHON)\` is not. Install it, or say where one is: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; \
		exit 1; }
	@echo "installing into $(VENV) (once; torch is large) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(if $(TORCH_INDEX),$(PIP) install -qq -c constraints.txt --index-url $(TORCH_INDEX) torch)
	@$(PIP) install -qq -c constraints.txt hatchling editables
	@$(PIP) install -qq -c constraints.txt --no-build-isolation --editable '.[test]'
	@touch $(INSTALLED)
