# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
DOCS ?=

.PHONY: demo test lint node bench clean

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Oaken needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V`. Try: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Installing what Oaken needs into .venv (half a minute or so) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,examples]'
	@touch $@

demo: .venv/.ready
	@$(BIN)/python -m agents_examples.demo $(if $(DOCS),--docs "$(DOCS)")

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# What tests of the protocol run besides; where it cannot be had they are skipped.
node: .venv/.ready
	@$(BIN)/python -m tests.mcp.conformance.node

# Some hundred processes are started, and would each compile all modules where none may be kept.
test: export PYTHONDONTWRITEBYTECODE =
test: lint node
	$(BIN)/pytest -n 3 --dist worksteal

bench: .venv/.ready
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.claim
	$(BIN)/python -m benchmarks.wake
	$(BIN)/python -m benchmarks.contention
	$(BIN)/python -m benchmarks.postgres
	$(BIN)/python -m benchmarks.http
	$(BIN)/python -m benchmarks.mcp
	$(BIN)/python -m benchmarks.crowd
	$(BIN)/python -m benchmarks.cockpit

clean:
	rm -rf .venv .node .screenshots
