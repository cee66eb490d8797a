"""Kinds of rewards that the package does not know (`own_kind`), at every door and as JSON: no file here knows them."""

import csv
import dataclasses
import json
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest
from check_subjects import few_states
from counting_env import Counting
from gymnasium.envs.registration import EnvSpec
from own_kind import Level
from PIL import Image

import vlmrm_gym
from vlmrm_gym import CLIP
from vlmrm_gym.rewards.specification import from_mapping, resolve_reward, to_mapping
from vlmrm_gym.sb3 import make_vec_env
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.train.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Constant(vlmrm_gym.RewardSpec):
    """A kind without fields, whose model is a plain function."""

    def build(self, device="auto"):
        return lambda frames: np.zeros(len(frames))


NAME, CART_POLE = "own_kind:Level", "VLMRM/CartPole-v1"
WHITE = 255.0
"""The first pixel of cart-pole."""


def make_counting():
    return Counting([3])


def test_every_form_of_a_kind_of_ones_own_scores():
    kwargs = {"scale": 2.0}
    for arguments in (
        {"reward": Level(scale=2.0)},
        {"reward": Level, "reward_kwargs": kwargs},
        {"reward": NAME, "reward_kwargs": kwargs},
        {"reward": {"kind": NAME, **kwargs}},
        {"reward": {"kind": "import", "path": NAME, "kwargs": kwargs}},
    ):
        assert resolve_reward(**arguments) == Level(
            scale=2.0
        )  # which is asked whether it learns, and where it is scored
        env = vlmrm_gym.VLMReward(make_counting(), **arguments)
        env.reset(seed=0)
        assert [env.step(0)[1] for _ in range(3)] == [4, 6, 8]
        env.close()


@dataclass(frozen=True, kw_only=True)
class Corners(Constant):
    corners: list[tuple[float, float]]


def test_a_list_of_pairs_is_a_field_like_any_other():
    """Only pairs with rewards in them are terms."""
    assert to_mapping(Corners(corners=[(0.0, 0.5)])) == {"kind": f"{__name__}:Corners", "corners": [(0.0, 0.5)]}
    assert from_mapping(to_mapping(Corners(corners=[(0.0, 0.5)]))) == Corners(corners=[(0.0, 0.5)])


def test_a_class_that_no_process_can_import_is_sent_to_workers_by_value():
    @dataclass(frozen=True)
    class Local(Level):
        """Of a function, as those of a notebook."""

    for num_workers in (0, 1):
        options = {"num_workers": num_workers, "return_features": True}
        envs = vlmrm_gym.VLMRewardVectorEnv([make_counting], reward=Local(scale=3.0), **options)
        envs.reset(seed=0)
        infos = [envs.step(np.zeros(1, dtype=int))[4] for _ in range(3)][-1]
        assert infos["vlm_rewards"][0].tolist() == [6, 9, 12]
        assert infos["vlm_features"][0].tolist() == [[[2, 1]], [[3, 1]], [[4, 1]]]
        assert envs.head.fingerprint == "first pixel"
        envs.close()


def test_vectors_and_stable_baselines3_take_it_in_workers_too():
    reward = {"kind": NAME, "scale": 0.5}
    for envs in (
        gym.make_vec(CART_POLE, 1, reward=reward, episode_length=2, num_workers=1),
        make_vec_env(CART_POLE, reward=reward, episode_length=2),
    ):
        envs.reset()
        infos = [envs.step(np.zeros(1, dtype=int))[-1] for _ in range(2)][-1]
        late = infos["vlm_rewards"][0] if isinstance(infos, dict) else infos[0]["vlm_rewards"]
        assert late.tolist() == [WHITE / 2] * 2
        envs.close()


def test_commands_take_it(tmp_path):
    """A check, scores of pictures, and a training of a YAML file."""
    flags = ["--reward", NAME, "--reward-kwargs", "{scale: 2}"]
    with few_states():
        main(["check", CART_POLE, *flags, "--out", str(tmp_path / "check")])
    assert NAME in (tmp_path / "check" / "report.html").read_text()
    Image.new("RGB", (16, 16), (3, 0, 0)).save(tmp_path / "red.png")
    main(["score", str(tmp_path / "red.png"), *flags, "--no-video", "--out", str(tmp_path / "scores")])
    with (tmp_path / "scores" / "rewards.csv").open() as file:
        assert float(list(csv.reader(file))[1][-1]) == 6
    file = tmp_path / "run.yaml"
    settings = {
        "env_name": CART_POLE,
        "reward": {"name": NAME, "kwargs": {"scale": 2}},
        "rl": {"n_steps": 20, "n_envs_per_worker": 1, "episode_length": 10, "learning_starts": 10},
    }
    file.write_text(json.dumps(settings))
    main(["train", str(file), "--trust-code", "--base-path", str(tmp_path), "--run-name", "run"])
    assert {row["vlm_return"] for row in RunFolder(tmp_path / "run").metrics()} == {10 * 2 * WHITE}


def test_a_mapping_names_the_kind_and_is_read_back():
    for specification in (Level(scale=2.0), Constant(), CLIP(prompt=["a", "b"], alpha=0)):
        mapping = json.loads(json.dumps(to_mapping(specification)))
        own = type(specification)
        assert mapping["kind"] == ("clip" if own is CLIP else f"{own.__module__}:{own.__name__}")
        assert from_mapping(mapping) == specification


def test_the_spec_of_an_environment_is_json_that_can_be_read():
    """The same environment, made from the JSON of another's spec, has the same reward."""
    cart_pole = gym.make("CartPole-v1", render_mode="rgb_array")
    for env in (
        gym.make(CART_POLE, reward=Level(scale=0.5)),
        vlmrm_gym.VLMReward(cart_pole, reward=Level(scale=0.5)),
    ):
        for made in (env, gym.make(EnvSpec.from_json(env.spec.to_json()))):
            made.reset(seed=0)
            assert made.step(0)[1] == WHITE / 2
            made.close()
    envs = gym.make_vec(CART_POLE, 1, reward=Level(scale=0.5))
    assert json.loads(envs.spec.to_json())["kwargs"]["reward"] == {"kind": NAME, "scale": 0.5}
    envs.close()


def test_the_spec_of_an_environment_with_a_kind_that_no_json_can_name_makes_it_again_and_is_no_json():
    @dataclass(frozen=True, kw_only=True)
    class Local(CLIP):
        """Of a function, as those of a notebook: JSON would have only the fields, of `CLIP`."""

        def build(self, device="auto"):
            return lambda frames: np.full(len(frames), 7.0)

    cart_pole = gym.make("CartPole-v1", render_mode="rgb_array")
    local = Local(prompt="a pole")
    for reward, paid in ((local, 7), (2.0 * local, 14)):
        for env in (gym.make(CART_POLE, reward=reward), vlmrm_gym.VLMReward(cart_pole, reward=reward)):
            with pytest.raises(TypeError, match="not JSON serializable"):
                env.spec.to_json()
            for made in (env, gym.make(env.spec)):
                made.reset(seed=0)
                assert made.step(0)[1] == paid
                made.close()


def test_a_mapping_of_what_cannot_be_imported_is_refused():
    own = dataclasses.make_dataclass("Own", [], bases=(Level,), frozen=True, namespace={"__module__": "__main__"})
    with pytest.raises(ValueError, match="must be of a class that can be imported to be written as a mapping"):
        to_mapping(own())
    with pytest.raises(TypeError, match="must be a dataclass to be written as a mapping"):
        to_mapping(type("NoDataclass", (vlmrm_gym.RewardSpec,), {})())
