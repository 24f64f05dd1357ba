# Two commands do everything, each from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

demo: $(STAMP)
	$(BIN)/python -m tests.demo $(ARGS)

test: check
	$(BIN)/python -m pytest -n 2 tests

check: $(STAMP)
	$(BIN)/ruff format --check tachyon_tui tests tools
	$(BIN)/ruff check tachyon_tui tests tools
	$(BIN)/mypy
	$(BIN)/lint-imports

messages: $(STAMP)
	$(BIN)/python tools/messages.py

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks

$(STAMP): pyproject.toml
	@echo "Installing into $(VENV): a minute or two, the first time only."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: demo test check messages bench clean
