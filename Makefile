# `make demo` trains an agent from a sentence; `make test` runs the tests. Both need Python 3.11 to 3.13.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# With the oldest versions: worlds, states and scoring, without Ray.
OLDEST := tests/tasks tests/states tests/scoring tests/envs/test_vector.py tests/envs/test_wrappers.py \
	--ignore-glob "tests/scoring/test_ray*"
# One file at a time on each of at most four cores; the processes share the cores, so torch takes one in each.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile
OPENGL := libegl1 libopengl0 libgl1-mesa-dri libosmesa6
OPENGL_FILES := libEGL.so.1 libOpenGL.so.0 libOSMesa.so.8

.DEFAULT_GOAL := help
.PHONY: help install opengl demo test test-slow test-oldest check format type docs docs-serve build tiny benchmark gpu-check clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed-dev  ## make .venv with everything, in the tested versions

$(VENV)/.installed-%: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -c constraints.txt -e ".[$*]"
	touch $@

opengl:  ## the system libraries that MuJoCo draws with; `make test` sees to them itself
	@if [ "$$(uname)" != Linux ] || dpkg -s $(OPENGL) > /dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq install -y --no-install-recommends $(OPENGL) > /dev/null; \
	elif ! $(PYTHON) -c 'import ctypes, sys; [ctypes.CDLL(name) for name in sys.argv[1:]]' $(OPENGL_FILES) 2> /dev/null; then \
		echo "The tests draw with OpenGL. Install its libraries: sudo apt-get install $(OPENGL)"; exit 1; \
	fi

demo: $(VENV)/.installed-train  ## train cart-pole from a sentence, then plot and film it (minutes, CPU)
	$(BIN)/python examples/dqn_cartpole.py

test: opengl install  ## the tests, without the slow ones
	$(TEST) -m "not slow and not gpu"

test-slow: opengl install  ## the slow tests
	$(TEST) -m "slow and not gpu"

test-oldest: opengl .venv-oldest/.installed  ## worlds, states and scoring with the oldest versions that we allow
	$(subst $(VENV)/,.venv-oldest/,$(TEST)) -m "not slow and not gpu" $(OLDEST)

.venv-oldest/.installed: requirements/oldest.txt $(VENV)/.installed-dev
	rm -rf .venv-oldest && $(BIN)/python -m venv --without-pip .venv-oldest
	cp -al $(VENV)/lib .venv-oldest  # hard links, three gigabytes in seconds; pip replaces files and changes none
	.venv-oldest/bin/python -m pip uninstall -qy mujoco mujoco-core mujoco-studio  # MuJoCo 4 is three in one folder
	.venv-oldest/bin/python -m pip install -q --no-deps -r requirements/oldest.txt
	touch $@

check: install  ## format, lint and types, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: install  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

type: install  ## types only
	$(BIN)/pyright

docs: $(VENV)/.installed-docs  ## the site, into build/docs; warnings are errors
	$(BIN)/python docs/build.py

docs-serve: $(VENV)/.installed-docs  ## the site, on http://127.0.0.1:8000
	$(BIN)/python docs/build.py --serve

build: opengl install  ## the wheel; its worlds, and a new user's ten wishes, in a fresh environment
	$(BIN)/python -m build --wheel
	rm -rf build/smoke && $(PYTHON) -m venv build/smoke
	build/smoke/bin/python -m pip install -q -c constraints.txt "$$(ls dist/*.whl)[train]"
	cd build && for world in CartPole-v1 MountainCarContinuous-v0 Humanoid-stand-v0; do smoke/bin/python -c "import gymnasium as gym; \
		env = gym.make('vlmrm_gym:VLMRM/$$world'); env.reset(seed=0); print(env.step(env.action_space.sample())[1])" || exit 1; done
	build/smoke/bin/python tests/repository/ten_wishes.py
	rm -rf build/smoke

tiny: install  ## train another bundled model from scratch, in place of vlmrm_gym/rewards/tiny
	$(BIN)/python -m bundled_model.train
	$(BIN)/python -m bundled_model.scenes

benchmark: install  ## what RESULTS.md reports
	$(BIN)/python benchmarks/fps.py
	$(BIN)/python benchmarks/fps.py --backend ray --no-reference
	$(BIN)/python benchmarks/driver.py
	$(BIN)/python benchmarks/physics.py
	$(BIN)/python benchmarks/clip_reward.py
	$(BIN)/python benchmarks/rendering.py
	$(BIN)/python benchmarks/preferences.py
	$(BIN)/python -m bundled_model.evaluate
	$(BIN)/python benchmarks/training_seeds.py cart-pole

gpu-check: opengl install  ## the tests that need a GPU, then the speed on it
	$(BIN)/python -m pytest -m gpu tests
	$(BIN)/python benchmarks/fps.py --device cuda --model ViT-B-32 --num-envs 64 --num-workers 4 --seconds 3 \
		--no-reference --views off

clean:  ## remove what the other targets made
	rm -rf $(VENV) .venv-oldest build dist runs *.egg-info .pytest_cache .ruff_cache .hypothesis
