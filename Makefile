# Two commands for a newcomer: `make demo` and `make test`. Both make .venv from a plain Python and install pinned packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check install clean

demo: $(READY)
	$(BIN)/cascade run recipes/nano.toml --run runs/nano

test: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -m "not slow"

install: $(READY)

# torch first and alone: asked for by another package, pip may choose a build that pulls gigabytes of CUDA.
$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' requirements.txt)"
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .ruff_cache
