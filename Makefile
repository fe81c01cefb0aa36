# make demo   trains a network that finds trees, and one that has none; draws what was found
# make tour   prints and draws what the mappings do
# make test   static checks and the tests of every day
# make test-thorough   the rest of the tests: what takes long
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

.PHONY: demo tour test test-thorough check docs bench clean

# One stamp file per set-up, such as stamp-dev,docs,recipes for the extras dev, docs and recipes; remade when what it installs changes.
.venv/stamp-%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt "torch" numpy
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable ".[$*]"
	touch $@

demo: .venv/stamp-recipes
	$(BIN)/structmax compare listops --over encoder=lstm,sparse_marginalisation --seeds 1 --jobs 2 --minutes 3 --name demo --overwrite --open

tour: .venv/stamp-recipes
	$(BIN)/python examples/tour.py

test: .venv/stamp-dev,docs,recipes check

test-thorough: .venv/stamp-dev,docs,recipes
	$(PYTEST) -m thorough

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -m "not thorough"

docs: .venv/stamp-docs
	$(BIN)/mkdocs build --strict
	$(BIN)/python docs/check_site.py --optional

bench: .venv/stamp-bench
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/structures.py
	$(BIN)/python benchmarks/sparsemap.py
	$(BIN)/python benchmarks/factor_graph.py
	$(BIN)/python benchmarks/modules.py
	$(BIN)/python benchmarks/first_calls.py

clean:
	rm -rf .venv site demo runs
