"""The rewards that an audit compares: which share features, what their controls are; and scenes, which draw states."""

from contextlib import closing
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from conftest import TASK_PROMPT

from vlmrm_gym import CLIP
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.data.rollouts import play, random_actions
from vlmrm_gym.envs.make import find_task, make_base_env
from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.rewards.own import ImportedReward, OwnReward
from vlmrm_gym.tools.check.rewards import ALPHAS, EncodedRewards, Scene, alpha_curves, control_rewards, encoder_key

POLE = CLIP(prompt="a pole", baseline="a cart", alpha=0.3)


def test_rewards_share_features_if_the_model_and_what_it_sees_are_the_same():
    other, squashed = replace(POLE, prompt="another"), replace(POLE, resize_mode="longest")
    own, another = (ImportedReward(path=f"rewards:{name}") for name in ("red", "blue"))
    assert encoder_key(POLE) == encoder_key(other)
    assert len({encoder_key(spec) for spec in (POLE, own, squashed, another)}) == 4


def test_controls_are_prompts_that_say_nothing_of_the_task():
    """A reward without texts has none, and no alphas."""
    assert [spec.alpha for spec in alpha_curves(POLE).values()] == sorted([0.3, *ALPHAS])
    unrelated, baseline = control_rewards(POLE).values()
    assert unrelated == CLIP(prompt="a bowl of fruit on a wooden table")
    assert baseline == CLIP(prompt="a cart")
    assert list(control_rewards(CLIP(prompt="a pole")).values()) == [unrelated]
    own = ImportedReward(path="rewards:red")
    assert list(alpha_curves(own).values()) == [own]
    assert control_rewards(own) == {}


class Own(RewardModel):
    """Features that no test here asks for: each hands its own to the head."""

    def encode(self, batch):
        raise AssertionError("No test here encodes.")


def test_what_a_single_state_has_no_reward_of_is_refused():
    for attributes, message in (
        ({"clip_length": 4}, "must be of single frames"),
        ({"head": None}, "has no head yet"),
    ):
        spec = OwnReward(type("Changed", (Own,), attributes))
        with pytest.raises(InputError, match=f"`reward` {message}"):
            EncodedRewards([spec], "cpu")


def test_the_views_that_a_reward_combines():
    """The head sees each view for itself."""
    spec = OwnReward(type("Headed", (Own,), {"head": lambda self, features: features[:, 0, 0]}))
    rewards, features = EncodedRewards([spec], "cpu"), np.array([[[1.0, 5.0], [3.0, 4.0]]], dtype=np.float32)
    assert rewards.view(spec, None, 1)(features[:, 1:]).tolist() == [3]
    for how, expected in (("min", 1), ("mean", 2)):
        assert rewards.view(spec, how, 2)(features).tolist() == [expected]


def play_randomly(env, scene, steps, seed=0):
    act = random_actions(env.action_space, np.random.default_rng(0))
    return play(env, scene.view, act, seed=seed, steps=steps)


def test_states_are_scored_as_the_environment_is_rewarded():
    env = make_base_env(find_task("VLMRM/CartPole-v1"), 20)
    spec = CLIP(prompt=TASK_PROMPT, model="tiny")
    rewards = EncodedRewards([spec], "cpu")
    with closing(env), closing(Scene(env, rewards.encoder)) as scene:
        rollout = play_randomly(env, scene, 20, seed=3)
        features = scene.features(rollout.states)
    assert features.shape == (20, 1, rewards.encoder.feature_size)
    with closing(gym.make("VLMRM/CartPole-v1", prompt=TASK_PROMPT)) as env:
        env.reset(seed=3)
        expected = [env.step(action)[1] for action in rollout.actions]
    np.testing.assert_allclose(rewards.view(spec, None, 1)(features), expected, atol=1e-5)


class Small(RewardModel):
    """Sees frames at a quarter of their size."""

    @staticmethod
    def render_size(height, width):
        return height // 4, width // 4


@pytest.mark.parametrize(("task_id", "camera"), [("CartPole-v1", None), ("Humanoid-stand-v0", "front-side")])
def test_a_scene_draws_what_a_view_of_the_environment_draws(task_id, camera):
    """To the pixel, at the environment's own size, from every camera: although the queue draws for the model."""
    env = make_base_env(find_task(f"VLMRM/{task_id}"), 5)
    with closing(env), closing(Scene(env, Small(), camera)) as scene:
        states = play_randomly(env, scene, 3).states
        drawn = np.concatenate(list(scene.draw(states).swapaxes(0, 1)), axis=2)
        np.testing.assert_array_equal(drawn, scene.view.draw(states.rows, states.changes))
