"""`reward=`: specifications, imported callables and callables, at every door and in every mode."""

import dataclasses
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from counting_env import Counting
from gymnasium.envs.registration import EnvSpec

import vlmrm_gym
from vlmrm_gym import CLIP
from vlmrm_gym.rewards.base import CheckedReward
from vlmrm_gym.rewards.clip import CLIPKeywords, CLIPOptions
from vlmrm_gym.rewards.specification import ImportedReward, from_mapping, resolve_reward, to_mapping


def mean_pixel(frames, scale=1.0):
    """A function as anyone would write it."""
    return scale * frames.mean((1, 2, 3))


class MeanPixel:
    """A class as anyone would write it."""

    batch_size = 7

    def __init__(self, scale=1.0, device="cpu"):
        self.scale, self.device = scale, device

    def __call__(self, frames):
        return torch.from_numpy(frames.copy()).double().mean((1, 2, 3)) * self.scale


not_callable = 3
HELPERS = str(Path(__file__).parents[1] / "helpers")
KINDS = {
    "CLIP": {"reward": CLIP(prompt=TASK_PROMPT)},
    "prompt": {"prompt": TASK_PROMPT},
    "mapping": {"reward": dataclasses.asdict(CLIP(prompt=TASK_PROMPT))},
    "function": {"reward": "test_reward_door:mean_pixel", "reward_kwargs": {"scale": 0.5}},
    "class": {"reward": "test_reward_door:MeanPixel", "reward_kwargs": {"scale": 0.5}},
    "callable": {"reward": lambda frames: 0.5 * frames.mean((1, 2, 3))},
    "object": {"reward": MeanPixel(0.5)},
    "class itself": {"reward": MeanPixel, "reward_kwargs": {"scale": 0.5}},
}
MODES = {
    "step": {"scoring": "step"},
    "episode": {},
    "overlap": {"overlap": True},
    "one worker": {"num_workers": 1},
    "two workers": {"num_workers": 2, "overlap": True},
    "workers, step": {"num_workers": 1, "scoring": "step"},
}


def cartpole(**_):
    return gym.wrappers.TimeLimit(gym.make("CartPole-v1", render_mode="rgb_array").unwrapped, 5)


def cartpole_with_spec():
    return gym.make("CartPole-v1", render_mode="rgb_array")


def step_by_step(kind):
    """Rewards of five steps of two environments, each scored at once."""
    rewards = []
    for seed in (0, 1):
        env = vlmrm_gym.VLMReward(cartpole(), **KINDS[kind])
        env.reset(seed=seed)
        rewards.append([env.step(1)[1] for _ in range(5)])
        env.close()
    return np.array(rewards)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*(("CLIP", mode) for mode in MODES), ("function", "two workers"), ("class", "one worker")],
)
def test_how_rewards_are_scored_never_changes_their_value(kind, mode):
    """Contract 3, for rewards of every kind."""
    envs = vlmrm_gym.VLMRewardVectorEnv([cartpole] * 2, **KINDS[kind], **MODES[mode])
    envs.reset(seed=0)
    stepwise = []
    for _ in range(5):
        _, rewards, _, _, infos = envs.step(np.ones(2, dtype=int))
        stepwise.append(rewards)
    if "overlap" in MODES[mode]:
        infos = envs.flush() if infos["vlm_rewards"][0] is None else infos
    scored = np.transpose(stepwise) if "step" in mode else np.stack(infos["vlm_rewards"])
    np.testing.assert_allclose(scored, step_by_step(kind), rtol=1e-5, atol=1e-5)
    envs.close()


@pytest.mark.parametrize("kind", ["function", "class", "callable", "object", "class itself"])
def test_custom_rewards_score_the_frames(kind):
    """Of the size that the environment shows, since they ask for no other."""
    env = vlmrm_gym.VLMReward(cartpole(), **KINDS[kind])
    env.reset(seed=0)
    reward = env.step(0)[1]
    assert reward == pytest.approx(0.5 * env.unwrapped.render().mean(), rel=1e-5)
    env.close()


def test_the_prompt_is_short_for_clip():
    options = {"baseline": "a cart", "alpha": 0.4, "resize_mode": "longest"}
    rewards = []
    for env in (
        vlmrm_gym.VLMReward(cartpole(), TASK_PROMPT, **options),
        vlmrm_gym.VLMReward(cartpole(), reward=CLIP(prompt=TASK_PROMPT, **options)),
        vlmrm_gym.VLMReward(cartpole(), TASK_PROMPT),
    ):
        env.reset(seed=0)
        rewards.append(env.step(0)[1])
        env.close()
    assert rewards[0] == rewards[1] != rewards[2]


def test_clip_options_are_the_fields_of_clip():
    """Type checkers need them written a second time."""
    hints = {field.name: field.type for field in dataclasses.fields(CLIP) if field.init}
    assert {"prompt": hints["prompt"], **CLIPOptions.__annotations__} == hints
    assert {"model": str | None, **CLIPKeywords.__annotations__} == CLIPOptions.__annotations__


@pytest.mark.parametrize(
    "specification",
    [
        CLIP(prompt=["a", "b"], baseline="c", alpha=0.3, model="tiny", precision="fp32", resize_mode="longest"),
        CLIP(prompt=("a", "b"), baseline=("c",), alpha=np.float32(0.5), batch_size=np.int64(7)),
        ImportedReward(path="test_reward_door:MeanPixel", kwargs={"scale": 2.0}),
    ],
)
def test_specifications_survive_json_and_pickle(specification):
    mapping = json.loads(json.dumps(dataclasses.asdict(specification)))
    assert mapping == to_mapping(specification)
    assert from_mapping(mapping) == specification
    assert resolve_reward(mapping, None, None, {}) == specification
    assert pickle.loads(pickle.dumps(specification)) == specification


def test_a_specification_does_not_change_with_the_list_it_was_made_of():
    texts = ["a", "b"]
    specification = CLIP(prompt=texts)
    texts.append("c")
    assert specification == CLIP(prompt=["a", "b"])


def test_registered_ids_take_rewards():
    """With the task's own prompt in the spec, and through its JSON."""
    env = gym.make("VLMRM/CartPole-v1", reward=CLIP(prompt="a fallen pole"), episode_length=3)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    rewards = []
    for made in (env, again, gym.make("VLMRM/CartPole-v1", prompt="a fallen pole")):
        made.reset(seed=0)
        rewards.append(made.step(0)[1])
        made.close()
    assert rewards == pytest.approx([rewards[0]] * 3)
    envs = gym.make_vec("VLMRM/CartPole-v1", 2, reward="test_reward_door:mean_pixel", episode_length=2)
    envs.reset(seed=0)
    envs.step(np.zeros(2, dtype=int))
    *_, infos = envs.step(np.zeros(2, dtype=int))
    assert (infos["vlm_rewards"][0] > 100).all()
    envs.close()


def test_functions_of_main_can_be_sent_to_workers(tmp_path):
    """They live in `__main__`, which a worker cannot import."""
    script = tmp_path / "notebook.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, vlmrm_gym\n"
        "from counting_env import Counting\n"
        "offset = 7\n"
        "def own(frames):\n"
        "    return frames[:, 0, 0, 0] + offset\n"
        "envs = vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([2])], reward=own, num_workers=1)\n"
        "envs.reset(seed=0)\n"
        "for _ in range(2): infos = envs.step(np.zeros(1, dtype=int))[4]\n"
        "print(infos['vlm_rewards'][0].tolist())\n"
        "envs.close()\n"
    )
    done = subprocess.run([sys.executable, str(script), HELPERS], capture_output=True, text=True)
    assert done.stdout.strip() == "[9.0, 10.0]", done.stderr


def counting(**kwargs):
    return vlmrm_gym.VLMRewardVectorEnv([Counting], scoring="step", **kwargs)


WRONG_RETURNS = {
    "shape": (
        lambda frames: frames.mean(),
        ValueError,
        r"a number for each frame, of shape \(1,\). Received shape \(\)",
    ),
    "too many": (lambda frames: np.zeros(2), ValueError, r"of shape \(1,\). Received shape \(2,\)"),
    "NaN": (lambda frames: np.full(len(frames), np.nan), ValueError, "finite ones. Received nan for frame 0 of 1"),
    "infinite": (lambda frames: np.full(len(frames), np.inf), ValueError, "finite ones. Received inf"),
    "too large": (
        lambda frames: np.full(len(frames), 1e300),
        ValueError,
        r"finite ones. Received 1e\+300 .*float32 inf",
    ),
    "texts": (
        lambda frames: ["good"],
        TypeError,
        r"a number for each frame, and nothing beside them. Received \['good'\]",
    ),
    "nothing": (lambda frames: None, TypeError, "a number for each frame, and nothing beside them. Received None"),
    "details too": (
        lambda frames: (frames.mean((1, 2, 3)), {"brightness": 1.0}),
        TypeError,
        r"and nothing beside them. Received \(array\(\[.*\]\), \{'brightness': 1.0\}\)",
    ),
    "details of each": (
        lambda frames: [(1.0, {"brightness": 1.0}) for _ in frames],
        TypeError,
        r"and nothing beside them. Received \[\(1.0, \{'brightness': 1.0\}\)\]",
    ),
    "raises": (lambda frames: 1 / 0, ZeroDivisionError, "division by zero"),
    "writes": (lambda frames: frames.sort(), ValueError, "read-only"),
}


@pytest.mark.parametrize(("wrong", "num_workers"), [*((wrong, 0) for wrong in WRONG_RETURNS), ("raises", 1)])
def test_bad_return_values_of_a_reward(wrong, num_workers):
    function, error, message = WRONG_RETURNS[wrong]
    envs = counting(reward=function, num_workers=num_workers)
    envs.reset(seed=0)
    with pytest.raises(error, match=message):
        envs.step(np.zeros(1, dtype=int))
    envs.close()


class Unpicklable:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, frames):
        return np.zeros(len(frames))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt": "a", "reward": mean_pixel}, TypeError, "`reward` and `prompt` cannot both be passed"),
        ({"reward": CLIP(prompt="a"), "alpha": 0.5}, TypeError, "`reward` and `alpha` cannot both be passed"),
        ({}, TypeError, "`prompt` must be a text or a list of texts. Received None"),
        ({"prompt": "a", "alhpa": 0.5}, TypeError, "`alhpa` is not an option of a reward. Did you mean `alpha`?"),
        ({"reward": mean_pixel, "combine_view": None}, TypeError, r"Did you mean `combine_views`\?"),
        ({"reward": "clop"}, ValueError, r"Received 'clop'. For the kind 'clip' pass CLIP\(...\)"),
        ({"reward": CLIP}, TypeError, "must fit <class '.*CLIP'>.*missing a required .*'prompt'"),
        (
            {"reward": "test_reward_door:mean_pixel", "reward_kwargs": {"b": 1}},
            TypeError,
            r"`reward_kwargs` must fit 'test_reward_door:mean_pixel', which takes \(frames, scale=1.0\): .*'b'",
        ),
        ({"reward": Counting}, ValueError, "`reward` must be a class of callables. Received <class .*, which made <"),
        ({"reward": 3}, TypeError, "`reward` must be a specification such as .* Received 3"),
        ({"reward": "mean_pixel"}, ValueError, "`reward` must be \"package.module:attribute\". Received 'mean_pixel'"),
        ({"reward": "no_such_module:f"}, ValueError, "a module that can be imported here. Received 'no_such_module:f'"),
        ({"reward": "test_reward_door:mean_pixl"}, ValueError, "there is no 'mean_pixl'. Did you mean 'mean_pixel'?"),
        ({"reward": "test_reward_door:not_callable"}, ValueError, "must be a callable or a class. .*, which is 3"),
        ({"reward": {"kind": "clop", "prompt": "a"}}, ValueError, "kind must be one of .*'clop'. Did you mean 'clip'"),
        ({"reward": {"kind": "clip"}}, TypeError, "CLIP.* missing 1 required keyword-only argument: 'prompt'"),
        ({"reward": {"kind": "clip", 3: 4}}, TypeError, "`3` is not a field of a reward"),
        (
            {"reward": {"kind": "import", "path": "numpy:mean", "kwargs": {"nope": 1}}},
            TypeError,
            "`reward`: kwargs must fit 'numpy:mean', which takes .*'nope'",
        ),
        (
            {"reward": {"kind": "import", "path": "numpy:mean", "kwargs": [1]}},
            TypeError,
            r"`reward`: kwargs must be a mapping of names to values\. Received \[1\]",
        ),
        ({"prompt": "a", "reward_kwargs": {"scale": 1}}, TypeError, "`reward_kwargs` needs a `reward`"),
        ({"reward": CLIP(prompt="a"), "reward_kwargs": {"b": 1}}, TypeError, "`reward_kwargs` is for a callable"),
        ({"reward": mean_pixel, "reward_kwargs": 3}, TypeError, "`reward_kwargs` must be a mapping .* Received 3"),
    ],
)
def test_bad_rewards(arguments, error, message):
    for door in (lambda: counting(**arguments), lambda: vlmrm_gym.VLMReward(Counting(), **arguments)):
        with pytest.raises(error, match=message):
            door()


def test_a_reward_that_cannot_be_pickled_is_refused_with_workers():
    reward = Unpicklable()
    counting(reward=reward).close()
    with pytest.raises(ValueError, match=r"`reward` cannot be sent to a worker: .*Pass num_workers=0, or the reward"):
        counting(reward=reward, num_workers=1)


def test_a_reward_that_cannot_be_copied_scores():
    """Gymnasium deep-copies what constructors get."""
    env = gym.make("VLMRM/CartPole-v1", reward=Unpicklable())
    env.reset(seed=0)
    assert env.step(0)[1] == 0
    env.close()


def test_a_reward_keeps_its_arguments_in_the_spec():
    env = vlmrm_gym.VLMReward(cartpole_with_spec(), reward=mean_pixel, reward_kwargs={"scale": 0.5})
    rewards = []
    for made in (env, gym.make(env.spec)):
        made.reset(seed=0)
        rewards.append(made.step(0)[1])
        made.close()
    assert rewards[0] == rewards[1] == pytest.approx(0.5 * 252, rel=0.01)


@pytest.mark.parametrize(("own", "scoring"), [(np.nan, "step"), (np.inf, "episode")])
def test_an_environments_own_reward_does_not_spoil_ours(own, scoring):
    """Its weight is 0, but 0 times a NaN is NaN."""
    infinite = [lambda: gym.wrappers.TransformReward(cartpole(), lambda _: own)] * 2
    envs = vlmrm_gym.VLMRewardVectorEnv(infinite, reward=mean_pixel, scoring=scoring)
    envs.reset(seed=0)
    for _ in range(5):
        _, rewards, _, _, infos = envs.step(np.ones(2, dtype=int))
    assert np.isfinite(rewards if scoring == "step" else np.concatenate(infos["vlm_rewards"])).all()
    np.testing.assert_array_equal(infos["task_reward"], [own] * 2)
    envs.close()
    env = vlmrm_gym.VLMReward(infinite[0](), reward=mean_pixel)
    env.reset(seed=0)
    assert np.isfinite(env.step(1)[1])
    env.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_tensors_of_every_precision_are_rewards(dtype):
    """NumPy has no bfloat16, in which many models compute on a GPU."""
    reward = CheckedReward(lambda frames: torch.arange(len(frames), dtype=getattr(torch, dtype), requires_grad=True))
    rewards = reward(np.zeros((3, 4, 4, 3), dtype=np.uint8))
    assert rewards.dtype == np.float32
    np.testing.assert_array_equal(rewards, [0, 1, 2])


@pytest.mark.parametrize("parameter", ["reward", "combine_views"])
def test_what_a_module_raises_when_it_is_imported_is_reported(parameter, make_module):
    make_module("faulty_module", "no_such_name")
    rule = f"`{parameter}` must be importable. Received 'faulty_module:f', which raised NameError"
    kwargs = {"reward": mean_pixel, parameter: "faulty_module:f"}
    with pytest.raises(ValueError, match=rule):
        gym.make("VLMRM/Humanoid-kneel-v0", camera="front-side", **kwargs)


class Sized:
    """A reward with a method for the size, which a worker must send to this process."""

    def __init__(self, size):
        self.size = size

    def render_size(self, height, width):
        return self.size

    def __call__(self, frames):
        return frames.mean((1, 2, 3))


def test_the_render_size_of_a_class_of_a_script_reaches_the_environments():
    class OfScript(Sized):
        """Not importable by its name."""

    envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=1, reward=OfScript((40, 60)), num_workers=1)
    envs.reset(seed=0)
    envs.step(np.zeros(1, dtype=np.int64))
    assert np.isfinite(envs.flush()["vlm_rewards"][0]).all()
    envs.close()


def test_a_render_size_that_cannot_leave_the_worker_is_refused():
    class Locked(Sized):
        def __init__(self, device="cpu"):
            super().__init__((40, 60))
            self.lock = threading.Lock()

    with pytest.raises(ValueError, match=r"`reward\.render_size` cannot be sent to the process of the environments"):
        gym.make_vec("VLMRM/CartPole-v1", num_envs=1, reward=Locked, num_workers=1)


@pytest.mark.parametrize("size", [7, (40.0, 60.0), (0, 60)])
def test_a_render_size_that_is_not_two_positive_integers_is_refused(size):
    rule = r"`reward\.render_size` must return \(height, width\), two integers of at least 1\. Received"
    with pytest.raises(ValueError, match=rule):
        gym.make("VLMRM/CartPole-v1", reward=Sized(size))


def test_a_render_size_that_is_not_a_function_is_refused():
    class Attribute(Sized):
        render_size = (40, 60)

    with pytest.raises(ValueError, match=r"`reward\.render_size` must be a function"):
        gym.make("VLMRM/CartPole-v1", reward=Attribute(None))
