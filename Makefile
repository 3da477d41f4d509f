# Every target sets up what it needs: Python 3.11+ and Java 17+ are all that must be there.
#   make test   lint, types and all tests but the soak     make demo   kill a node, see nothing lost
#   make lint   lint and types only                        make soak   hours of faults
#   make demo-ksafe   kill one of two that race, then the other
#   make clean  remove everything that was set up
# PYTHON=... chooses an interpreter, JAVA_HOME=... a Java.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := test
.PHONY: test lint demo demo-ksafe soak clean java

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Spark finds Java the same way: JAVA_HOME first, then the search path.
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
PYTHON ?=

test: lint java
	-$(BIN)/anabranch prepare
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(STAMP) java
	$(BIN)/python examples/demo.py

demo-ksafe: $(STAMP) java
	$(BIN)/python examples/demo_ksafe.py

soak: $(STAMP) java
	ANABRANCH_STORE_KILLS=200 $(BIN)/python -m pytest tests/test_stores.py -k killed --timeout=0
	$(BIN)/python -m pytest -m soak tests -p no:randomly -s --timeout=0

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@found=$$("$(JAVA)" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || true; \
	if [ -z "$$found" ] || [ "$$found" -lt 17 ]; then \
	    echo "error: Spark needs Java 17 or newer, and '$(JAVA)' is $${found:+version }$${found:-missing or does not run}." >&2; \
	    echo "hint: set JAVA_HOME to a Java 17, or install one: apt-get install openjdk-17-jre-headless" >&2; \
	    exit 1; \
	fi

$(STAMP): pyproject.toml
	@chosen=""; \
	for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3 python; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        chosen="$$candidate"; break; \
	    fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	    echo "error: no Python 3.11 or newer on the search path." >&2; \
	    echo "hint: install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$chosen" --version)"; \
	if [ ! -x "$(BIN)/python" ] && ! "$$chosen" -m venv $(VENV); then \
	    rm -rf $(VENV); \
	    echo "error: $$chosen cannot make a virtual environment." >&2; \
	    echo "hint: install its venv module, for example: apt-get install python3.11-venv" >&2; \
	    exit 1; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
