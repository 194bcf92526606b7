# make conformance   judge every built-in implementation
# make test          lint, types, the suite's own tests, and the built-in implementations in two dtypes
# make thorough      the same in every dtype, with tests that repeat others in more variants and processes
# make bench         times the built-in implementations on representative workloads, and writes report/bench.html

# A clone judges with its own code: with another copy on PYTHONPATH there would be two.
unexport PYTHONPATH

PYTHON ?= python3
VENV   ?= .venv
RUN    := $(VENV)/bin/python
READY  := $(VENV)/.ready
JUDGES := $(VENV)/.judges
KERNELS := $(VENV)/kernels/.ready
TYPED  := $(VENV)/typing/attention_conformance

BENCH  := report/bench.json

.PHONY: conformance test thorough bench bench-compare bench-calibration lint types bounds mutation reach conventions
.PHONY: audit-score covering clause-seconds profile-suite door-cost docs links format clean report-diff first-contact wheel-check diagnosis-score
.PHONY: peers matrix audit-packages kernels

conformance: $(JUDGES)
	$(RUN) -m pytest --report report -n 2 --dist worksteal

test: lint types
	$(RUN) -m pytest tests/selftest tests/conformance --dtype float64 --dtype bfloat16 -n 3 --dist worksteal --durations=5

thorough: lint types
	$(RUN) -m pytest tests/selftest tests/conformance --thorough -n 2 --dist worksteal

# The built-in Triton and Pallas kernels, interpreted, and each with mistakes of such kernels; where JAX is missing, the
# tests of Pallas are skipped and say so.
kernels: $(KERNELS)
	PYTHONPATH=$(dir $(KERNELS)) TRITON_INTERPRET=1 $(RUN) -m pytest --thorough -n 2 --dist worksteal -rs -k "not does_not_hold" \
		tests/selftest/implementations/test_triton.py tests/selftest/implementations/test_pallas.py

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(TYPED)
	MYPYPATH=$(dir $(TYPED)) $(RUN) -m mypy

# make report-diff OLD=folder [NEW=report] [FORMAT=text|markdown|json]
report-diff: $(READY)
	$(RUN) -m attention_conformance report-diff $(or $(OLD),$(error give the report to compare with: OLD=folder)) \
		$(or $(NEW),report) --format $(or $(FORMAT),text)

# The wheel in an empty environment: everything is installed anew, which takes a minute.
wheel-check: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.first_contact wheel

bench: $(READY)
	$(RUN) -m pytest tests/benchmarks --whole --seconds 2 --benchmark-json $(BENCH); status=$$?; \
	$(RUN) -m attention_conformance.tests.benchmarks.html_page $(BENCH) report/bench.html && exit $$status

# make bench-compare OLD=old.json [NEW=report/bench.json] [ACROSS=--across-machines]
bench-compare: $(READY)
	$(RUN) -m attention_conformance.tests.benchmarks.compare $(or $(OLD),$(error give the run to compare with: OLD=old.json)) \
		$(or $(NEW),$(BENCH)) $(ACROSS)

bench-calibration: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.calibration

bounds: $(READY)
	$(RUN) -m attention_conformance.tests.selftest.reference.bound_margins
	$(RUN) -m attention_conformance.tests.selftest.reference.half_margins

# ADDED=--added judges only defects that the stored score lacks, and adds their rows: minutes instead of an hour
mutation: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.mutation $(ADDED)

# Under which conditions a sample of the defects would survive, and the page of it; EVERY=1 takes all of them, for hours
reach: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.reach.score --every $(or $(EVERY),20) --write

# The diagnosis of defects whose chapter it does not know, and the page of it
diagnosis-score: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.diagnosis_score --write

audit-score: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.audit_score

# What the auditor finds of other packages' functions and classes without their adapters; PATTERN as for matrix
audit-packages: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.audit_packages $(foreach each,$(PATTERN),'$(each)')

conventions: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.conventions

covering: $(READY)
	$(RUN) -m attention_conformance.spec.covering

# What a check of each clause takes, for --shard: after make conformance
clause-seconds: $(READY)
	$(RUN) -m attention_conformance check torch.nn.functional:scaled_dot_product_attention --report report/alone
	$(RUN) -m attention_conformance.tests.measurements.clause_seconds report report/alone

profile-suite: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.suite_profile

# Compares the reference with the test cases of others, of packages that are installed: minutes
peers: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.peers

# The chapters that every attention has, in float32 and the quick tier: a part of the matrix.
# PATTERN="keras* onnx*" are some of the packages, CHAPTERS="scores.* shapes.*" others of the clauses.
PATTERN  ?=
CHAPTERS ?= scores.* softmax.* values.* heads.* masks.* causal.* grouped.*
matrix: $(READY)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[matrix]'
	$(RUN) -m attention_conformance matrix $(foreach each,$(PATTERN),'$(each)') --report matrix --jobs 2 --dtype float32 \
		$(foreach each,$(CHAPTERS),--clause '$(each)')

# What a process of its own costs: wall and CPU seconds of the quick tier, for four candidates
door-cost: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.door_cost

# Times the way of a new user from a clone to the first verdict: minutes, with the downloads of the installation
first-contact: $(READY)
	$(RUN) -m attention_conformance.tests.measurements.first_contact clone

# The documentation as pages in site/; a link between pages that leads nowhere is an error
docs: $(READY)
	$(RUN) -m docs.build site

# Asks the web for every address that the documentation names: minutes, and a network
links: $(READY)
	$(RUN) -m docs.build site/links --builder linkcheck

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# mypy does not see an editable installation below another name: it gets the clone by a link of that name.
$(TYPED): $(READY)
	mkdir -p $(dir $@)
	ln -sfn ../.. $@

# What judging needs, and what work on the suite needs besides. Tests start hundreds of processes: where Python may write
# no bytecode of its own, each of them would compile the suite anew.
$(JUDGES): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable .
	$(RUN) -m compileall -q spec reference implementations tests
	touch $(JUDGES)

$(READY): $(JUDGES)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $(READY)

# Triton stays beside the environment, where torch does not find it: torch would load it in every process.
$(KERNELS): $(READY)
	$(RUN) -m pip install --quiet --no-deps --upgrade --constraint constraints.txt --target $(@D) 'triton>=3.4'
	touch $(KERNELS)

clean:
	rm -rf $(VENV) build report site .mypy_cache .ruff_cache .pytest_cache .hypothesis
