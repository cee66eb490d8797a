"""Options are declared once: every door, file and flag is derived from their fields."""

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import gymnasium as gym
import pytest
from bad_options import BAD, passed
from changed_package import change_package
from conftest import TASK_PROMPT

import vlmrm_gym
from vlmrm_gym.rewards.clip import CLIP
from vlmrm_gym.sb3 import make_vec_env
from vlmrm_gym.scoring.options import TIMEOUTS, FileOptions, ScoringOptions, option_fields, read_help
from vlmrm_gym.scoring.scorer import MODULES
from vlmrm_gym.tools.train.config_file import read_config

ROOT = Path(__file__).parents[1]
CARTPOLE = "VLMRM/CartPole-v1"
CLIP_FIELDS = [one.name for one in fields(CLIP) if one.init]
SINGLE = [*CLIP_FIELDS, *(one.name for one in option_fields(vector=False))]
FOR_VECTORS = {one.name for one in option_fields(vector=True)} - set(SINGLE) | {"autoreset_mode"}


def cartpole():
    return gym.make("CartPole-v1", render_mode="rgb_array")


def single(**keywords):
    vlmrm_gym.VLMReward(cartpole(), **keywords)


def vector(**keywords):
    vlmrm_gym.VLMRewardVectorEnv([cartpole], **keywords)


def make(**keywords):
    gym.make(CARTPOLE, **keywords)


def make_vec(**keywords):
    gym.make_vec(CARTPOLE, num_envs=2, **keywords)


def for_sb3(**keywords):
    make_vec_env(CARTPOLE, 2, **keywords)


def test_every_keyword_has_a_bad_value_here():
    assert {*SINGLE, *FOR_VECTORS} == BAD.keys()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_in_the_same_words_at_every_door(name):
    _, error, words = BAD[name]
    doors = [vector, make_vec, *[for_sb3] * (name != "autoreset_mode"), *[single, make] * (name in SINGLE)]
    for door in doors:
        with pytest.raises(error) as raised:
            door(**passed(name))
        assert str(raised.value).startswith(f"`{name}` {words}")


@pytest.mark.parametrize("name", [one.name for one in (*fields(FileOptions), *fields(CLIP)) if "check" in one.metadata])
def test_a_bad_value_is_refused_in_the_same_words_in_files(name):
    value, _, words = BAD[name]
    texts = ("prompt", "baseline", "goal_images", "baseline_images")  # pictures are read when the reward is made
    value, words = (5, "must be a text or a list of texts. Received 5.") if name in texts else (value, words)
    text = ".nan" if value != value else json.dumps(value)
    (problem,) = read_config(f"reward:\n  {name}: {text}\n", "config.yaml").problems
    assert problem.message.startswith(f"`reward.{name}` {words}")


def test_timeouts_are_a_mapping_of_known_names_and_options_of_ray_are_for_ray():
    for wrong in (3, {"draw": float("nan")}, {"score": 1}):
        with pytest.raises(ValueError, match="`worker_timeouts` must be a mapping of 'load', 'draw'"):
            ScoringOptions(worker_timeouts=wrong)
    with pytest.raises(ValueError, match='`ray_options` needs backend="ray"'):
        ScoringOptions(ray_options={})
    assert ScoringOptions(worker_timeouts={"draw": None}).timeouts == {**TIMEOUTS, "draw": None}


@pytest.mark.parametrize("name", sorted(FOR_VECTORS - {"autoreset_mode"}))
def test_single_environments_say_what_only_vectors_take(name):
    default = ScoringOptions.__dataclass_fields__[name].default
    with pytest.raises(TypeError, match=rf"`{name}` is for vector environments only. Received .* Make a VLMRewardVect"):
        single(prompt=TASK_PROMPT, **{name: default})


def test_unknown_keywords_are_named():
    for door, given, meant in (
        (single, "camra", "camera"),
        (make, "qualty", "quality"),
        (vector, "num_worker", "num_workers"),
        (make_vec, "autoreset_mod", "autoreset_mode"),
        (for_sb3, "basline", "baseline"),
    ):
        with pytest.raises(TypeError, match=rf"`{given}` is not an option of a reward. Did you mean `{meant}`\?"):
            door(prompt=TASK_PROMPT, **{given: 3})


def test_whole_numbers_of_files_and_cameras_of_flags_keep_their_types():
    """1e9 is an integer, as it is elsewhere in files; what is written without a point is a float where it should be."""
    text = "reward: {max_pending_bytes: 1e9, task_reward_weight: 2, scoring: step, alpha: 1}"
    file = read_config(text, "config.yaml")
    values = [getattr(file.config.reward, name) for name in ("max_pending_bytes", "task_reward_weight", "alpha")]
    assert (file.problems, values, file.config.reward.scoring) == ((), [10**9, 2.0, 1.0], "step")
    assert list(map(type, values)) == [int, float, float]


def test_signatures_and_help_list_every_keyword_with_its_default():
    for kind, names in (
        (vlmrm_gym.VLMReward, {*SINGLE}),
        (vlmrm_gym.VLMRewardVectorEnv, {*SINGLE, *FOR_VECTORS}),
    ):
        signature = inspect.signature(kind)
        assert signature.parameters.keys() == {"env", *names}
        assert "keywords" not in (inspect.getdoc(kind) or "")
        helped = " ".join((inspect.getdoc(kind) or "").split())
        for own in (ScoringOptions, CLIP):
            for one in fields(own):
                if one.name in names - {"prompt"}:
                    assert signature.parameters[one.name].default == one.default
                    assert f" {one.name}: {read_help(own)[one.name]}" in helped


def test_the_tables_of_the_guide_are_those_of_the_fields():
    make = runpy.run_path(str(ROOT / "docs" / "make_keywords.py"))
    text = make["PAGE"].read_text()
    assert make["fill"](text) == text, "run python docs/make_keywords.py"
    assert {*SINGLE, *FOR_VECTORS} - {"autoreset_mode"} <= set(re.findall(r"^\| `(\w+)` \|", text, re.M))


def test_backends_are_those_that_can_be_chosen():
    with pytest.raises(ValueError, match="one of " + ", ".join(repr(name) for name in MODULES if name != "local")):
        vector(prompt=TASK_PROMPT, backend="local")


FIELD = '''    brightness: int = field(default=1, metadata=_has(integer(1, 9)))
    """How bright a scene is."""
'''
VISIT = """
import contextlib, io, inspect
from functools import partial
from test_options import for_sb3, make, make_vec, single, vector
import vlmrm_gym
from vlmrm_gym.tools.cli.train import configure, main
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.tools.train.config_file import read_config, to_yaml
from vlmrm_gym.tools.train.environments import make_envs, make_video_env

seen, of = [], ScoringOptions.of.__func__
def spy(cls, keywords, *, vector):
    options = of(cls, keywords, vector=vector)
    seen.append(options.brightness)
    return options
ScoringOptions.of = classmethod(spy)

for door in (single, vector, make, make_vec, for_sb3):
    door(prompt="an upright pole", brightness=2)
    assert seen.pop() == 2, door
    try:
        door(prompt="an upright pole", brightness=10)
    except ValueError as error:
        assert str(error) == "`brightness` must be an integer of at most 9. Received 10.", error
    else:
        raise AssertionError(door)
for kind in (vlmrm_gym.VLMReward, vlmrm_gym.VLMRewardVectorEnv):
    assert inspect.signature(kind).parameters["brightness"].default == 1
    assert "        brightness: How bright a scene is.\\n" in kind.__doc__

file = read_config("env_name: VLMRM/CartPole-v1\\nreward: {brightness: 3}", "f")
assert (file.problems, file.config.reward.brightness) == ((), 3)
assert read_config(to_yaml(file.config), "f").config == file.config
assert "`reward.brightness` must be" in read_config("reward: {brightness: 0}", "f").problems[0].message
config = configure(None, ["--env-name", "VLMRM/CartPole-v1", "--reward.brightness", "4"])
training = partial(make_envs, config, 2, for_training=True)
for envs in (training, partial(make_envs, config, 2), partial(make_video_env, config)):
    seen.clear()
    envs().close()
    assert seen == [4]
said = io.StringIO()
with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
    main(["--help-all"])
helped = " ".join(said.getvalue().replace("│", " ").split())
assert "--reward.brightness N How bright a scene is. (default: 1)" in helped
print("found at every door")
"""


@pytest.mark.slow
def test_a_field_that_is_added_is_found_at_every_door(tmp_path):
    """In a copy of the package, in which one file differs by one field."""
    change_package(tmp_path, "scoring/options.py", '    quality: Quality = field(default="fast"', FIELD)
    paths = os.pathsep.join(map(str, (tmp_path, ROOT / "tests", ROOT / "tests" / "helpers")))
    command = [sys.executable, "-W", "ignore", "-c", VISIT]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, check=False
    )
    assert done.stdout.endswith("found at every door\n"), done.stderr
