# make conformance   judge every built-in implementation
# make test          lint, types, the suite's own tests, and the built-in implementations

PYTHON ?= python3
VENV   ?= .venv
RUN    := $(VENV)/bin/python
READY  := $(VENV)/.ready

.PHONY: conformance test lint types bounds mutation defects conventions pruning covering profile-suite format clean

conformance: $(READY)
	$(RUN) -m pytest --report report

test: lint types
	$(RUN) -m pytest tests/selftest tests/conformance -n 2 --durations=5

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(READY)
	$(RUN) -m mypy

bounds: $(READY)
	$(RUN) -m tests.measure_bounds
	$(RUN) -m tests.measure_family_bounds

mutation: $(READY)
	$(RUN) -m tests.measure_mutation

defects: $(READY)
	$(RUN) -m implementations.defects.page

conventions: $(READY)
	$(RUN) -m tests.measure_conventions

pruning: $(READY)
	$(RUN) -m tests.measure_pruning

covering: $(READY)
	$(RUN) -m spec.covering

profile-suite: $(READY)
	$(RUN) -m tests.profile_suite

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) report .mypy_cache .ruff_cache .pytest_cache .hypothesis
