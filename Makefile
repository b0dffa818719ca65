# Two commands for a newcomer: `make demo` and `make test`. Both make .venv from a plain Python and install pinned packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A process a core, each with one thread: operators of small models gain little from a second one.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: demo test check install clean

demo: $(READY)
	$(BIN)/cascade run recipes/nano.toml --run runs/nano

test: $(READY)
	$(PYTEST)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --summary=none
	$(PYTEST) -m "not slow"

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
