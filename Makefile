# Every target sets itself up: a fresh clone needs Python 3.11 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-gpu check format proof experiments drawings bench clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "worldsize needs Python 3.11 or newer; use make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/ready  ## train on one worker, then on all cores; show that the weights are the same; leave report.html
	$(BIN)/worldsize demo

test: .venv/ready  ## all facts, under four minutes
	$(BIN)/python -m pytest -m 'not proof' -n 2 --dist loadfile

test-gpu: .venv/ready  ## what holds on GPUs, on a machine that has some
	$(BIN)/python -m pytest -m gpu

check: .venv/ready  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proof: .venv/ready  ## every catalogue in full; writes the tables under docs/proof
	$(BIN)/python -m pytest -m proof -s

experiments: .venv/ready  ## every experiment in full, most of an hour; keeps the results and draws them for the docs
	$(BIN)/worldsize experiment run all --out build/experiments || test $$? = 1  # 1: a prediction did not hold
	$(BIN)/python docs/experiments/draw.py build/experiments

drawings: .venv/ready  ## the experiments' page and drawings, from their results
	$(BIN)/python docs/experiments/draw.py

bench: .venv/ready  ## speed against a plain torchrun script; on a machine with nothing else to do
	$(BIN)/python benchmarks/against_ddp.py

clean:
	rm -rf .venv build dist src/*.egg-info
