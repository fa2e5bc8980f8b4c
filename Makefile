# `make demo` and `make test` need only make and Python 3.11 or newer; they create .venv and install the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
FAST := not slow and not gpu
# Files with tests that need optimized programs (see tests/conftest.py); collecting the other files takes 15 seconds.
OPTIMIZED := mark\.optimized|def test_[a-z0-9_]*_bits?(_|\()

# Python compiles jax, the other packages, jfit and the tests to bytecode once and reads that from then on.  Where this variable is
# set (in many container images), each process compiles them again, which takes longer than many of the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all lint notebooks docs bench fuzz clean

demo: .venv/.demo
	$(PY) examples/digits.py

test: .venv/.test
	JFIT_TESTS=quickly $(PY) -m pytest -q -n 2 --dist worksteal -m "$(FAST) and not optimized"
	$(PY) -m pytest -q -n 2 --dist worksteal -m "$(FAST) and optimized" $$(grep -lE "$(OPTIMIZED)" tests/*/test_*.py)

test-all: .venv/.test
	$(PY) -m pytest -q -n 2 --dist worksteal -m "not gpu"

lint: .venv/.test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)

notebooks: .venv/.test
	$(PY) -m pytest -q tests/docs/test_docs.py -m slow -k notebook

# Builds the documentation into build/site; a warning is an error. The variable silences an advertisement of the theme.
docs: .venv/.docs
	JAX_PLATFORMS=cpu NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# Optional: atheris has wheels for Linux only. FUZZ_S seconds for each reader of files.
FUZZ_S ?= 60
fuzz: .venv/.fuzz
	for target in arrays states graph mutant header tensors; do \
	  $(PY) -m fuzz.run $$target -max_total_time=$(FUZZ_S) || exit 1; done

bench: .venv/.bench
	$(PY) -m benchmarks.step_overhead
	$(PY) -m benchmarks.peers

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist runs

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "No python3.11 or python3 was found; install Python 3.11 or newer, or run make PYTHON=/path/to/python."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is too old, jfit needs Python 3.11 or newer; run make PYTHON=/path/to/python."; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; echo "venv failed; on Debian install python3-venv."; exit 1; }
	-$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip uv

# One stamp per set of extras: a changed pyproject.toml installs again, an unchanged one costs nothing.
# uv installs in a quarter of pip's time, but does not read pip's settings (an index of a company, say): then pip does it.
.venv/.%: pyproject.toml | .venv/bin/python
	$(PY) -m uv pip install --quiet --editable '.[$*]' || \
	  $(PY) -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
