# `make demo` trains an agent from a sentence; `make test` runs the tests. Both need Python 3.11 to 3.13; the tests also
# need what `make opengl` installs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install opengl demo test test-slow check format type build tiny benchmark clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed-dev  ## make .venv with everything, in the tested versions

$(VENV)/.installed-%: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -c constraints.txt -e ".[$*]"
	touch $@

opengl:  ## the system libraries that MuJoCo draws with, on Debian and Ubuntu (as root)
	apt-get update && apt-get install -y --no-install-recommends libegl1 libopengl0 libgl1-mesa-dri libosmesa6

demo: $(VENV)/.installed-train  ## train cart-pole from a sentence, then plot and film it (minutes, CPU)
	$(BIN)/python examples/dqn_cartpole.py

test: install  ## the tests, without the slow ones
	$(BIN)/python -m pytest -m "not slow"

test-slow: install  ## all tests
	$(BIN)/python -m pytest

check: install  ## format, lint and types, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: install  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

type: install  ## types only
	$(BIN)/pyright

build: install  ## the wheel, and a smoke test of it in a fresh environment
	$(BIN)/python -m build --wheel
	rm -rf build/smoke && $(PYTHON) -m venv build/smoke
	build/smoke/bin/python -m pip install -q -c constraints.txt dist/*.whl
	cd build && smoke/bin/python -c "import gymnasium as gym; env = gym.make('vlmrm_gym:VLMRM/CartPole-v1'); env.reset(seed=0); print(env.step(0)[1])"
	rm -rf build/smoke

tiny: install  ## make the bundled model again, from nothing
	$(BIN)/python -m vlmrm_gym.tiny.train

benchmark: install  ## what RESULTS.md reports
	$(BIN)/python benchmarks/fps.py
	$(BIN)/python benchmarks/physics.py
	$(BIN)/python benchmarks/clip_reward.py
	$(BIN)/python benchmarks/rendering.py
	$(BIN)/python benchmarks/bundled_model.py
	$(BIN)/python benchmarks/training_seeds.py cart-pole

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist runs *.egg-info .pytest_cache .ruff_cache .hypothesis
