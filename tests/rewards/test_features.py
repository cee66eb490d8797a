"""Features, the heads that make rewards of them, and pictures of states."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import take
from reward_models import TwoFeatures

from vlmrm_gym.rewards.clip_model import GoalBaseline
from vlmrm_gym.rewards.current_head import CurrentHead, apply_head
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.preference_model import PreferenceHead
from vlmrm_gym.scoring.state_encoder import StateEncoder
from vlmrm_gym.states import States
from vlmrm_gym.tasks.humanoid_body import plain_model

TASK = "VLMRM/CartPole-v1"


def play(envs, steps, seed=0):
    """The infos of some steps of random actions."""
    envs.action_space.seed(seed)
    envs.reset(seed=seed)
    return [envs.step(envs.action_space.sample())[4] for _ in range(steps)]


def vector(num_envs=2, **options):
    return gym.make_vec(TASK, num_envs, episode_length=5, **options)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "overlap": True}])
def test_rewards_of_features_are_those_that_are_scored_without(options):
    """With features, the head makes the same rewards elsewhere; `vlm_features` has a row for each reward."""
    received = []
    for features in ({}, {"return_features": True, **options}):
        envs, rewards = vector(alpha=0.5, **features), [[], []]
        for infos in [*play(envs, 12), envs.flush()]:
            take(rewards, infos)
            for i in np.flatnonzero(infos["_vlm_rewards"] & bool(features)):
                assert infos["vlm_features"][i].shape == (len(infos["vlm_rewards"][i]), *envs.feature_shape)
                assert infos["vlm_features"][i].dtype == np.float32
                assert (infos["vlm_reward_version"][i], envs.feature_shape[0]) == (1, 1)
        received.append(rewards)
        envs.close()
    np.testing.assert_allclose(received[1], received[0], atol=1e-5)


def test_a_new_head_makes_the_rewards_from_then_on_and_evaluation_environments_follow():
    """`head.replace` changes rewards that have not been delivered; environments that share the head change with it."""
    envs, evaluation = (vector(1, reward=TwoFeatures(), return_features=True) for _ in range(2))
    evaluation.head = envs.head
    before = play(envs, 5)[-1]
    np.testing.assert_allclose(before["vlm_rewards"][0], 2 * before["vlm_features"][0][:, 0, 0] + 1)
    assert envs.head.replace(lambda features: -features[:, 0, 0]) == 2
    for one in (envs, evaluation):
        infos = play(one, 5)[-1]
        np.testing.assert_allclose(infos["vlm_rewards"][0], -infos["vlm_features"][0][:, 0, 0])
        assert infos["vlm_reward_version"][0] == 2
        one.close()


def test_a_head_that_cannot_make_rewards_is_named_and_nothing_is_lost():
    """The error says which version and which transitions; with another head the same rewards arrive."""
    envs = vector(1, reward=TwoFeatures(), return_features=True)
    envs.head.replace(lambda features: features[:, 0, 0] / 0)
    infos = play(envs, 5)[-1]
    assert not infos["_vlm_rewards"].any()
    message = r"`head` version 2 must map .* of environment 0\. It returned inf for transition 0, and 5 such"
    with pytest.raises(ValueError, match=message):
        envs.flush()
    envs.head.replace(lambda features: features[:, 0, 0])
    assert len(envs.flush()["vlm_rewards"][0]) == 5
    envs.close()


def test_heads_of_other_features_are_refused():
    """A head that says what features it is of fits only those."""
    head = CurrentHead(fingerprint="tiny, squash")
    with pytest.raises(ValueError, match=r"`head` must be of the features 'tiny, squash'. Received .* 'two features'"):
        head.replace(PreferenceHead((1, 2), fingerprint="two features"))
    with pytest.raises(TypeError, match="`head` must be a callable"):
        head.replace("mean")


def test_views_are_combined_inside_of_the_head():
    """The rewards of the views are combined; with `multi_view` the head sees all views at once."""
    features = torch.rand(4, 3, 8, generator=torch.Generator().manual_seed(0))
    goal = torch.nn.functional.normalize(torch.arange(8.0), dim=0)
    by_view = (features @ goal).numpy()
    head = GoalBaseline.from_embeddings(goal, None, 0.0)
    np.testing.assert_allclose(head(features).numpy(), by_view.min(1), rtol=1e-6)
    each = StateEncoder(type("Each", (TwoFeatures,), {"head": head, "feature_size": 8})(), 3).info
    for how, expected in (("min", by_view.min(1)), ("mean", by_view.mean(1)), (lambda r: r[:, 2], by_view[:, 2])):
        made = each.make_head(CombineViews(how, 3))(features)
        np.testing.assert_allclose(made.numpy(), expected, rtol=1e-6)
    joint = StateEncoder(type("Joint", (TwoFeatures,), {"multi_view": True})(), 3).info
    assert joint.feature_shape == (3, 2)
    assert apply_head(joint.make_head(None), np.ones((2, 3, 2), dtype=np.float16)).tolist() == [9, 9]


def test_a_model_of_several_views_is_called_with_them_and_one_of_clips_with_clips():
    class Views(TwoFeatures):
        multi_view = True

        def encode(self, frames):
            return super().encode(frames if frames.ndim == 4 else frames[:, -1])

        def head(self, features):
            return features[:, -1, 0] - features[:, 0, 0]

    numbers = np.array([[1, 5], [2, 9], [0, 3]])
    frames = np.stack([numbers, 0 * numbers, 0 * numbers], axis=-1)[:, :, None, None].astype(np.uint8)
    assert Views()(frames).tolist() == [4, 7, 3]
    assert Views()(frames[:, None].repeat(6, axis=1)).tolist() == [4, 7, 3]


def test_the_features_of_a_function_are_its_rewards():
    envs = vector(1, reward=lambda frames: frames.mean((1, 2, 3)), return_features=True)
    infos = play(envs, 5)[-1]
    np.testing.assert_array_equal(infos["vlm_features"][0], infos["vlm_rewards"][0][:, None, None])
    envs.close()


def test_any_state_is_drawn_again_at_any_size_and_from_any_camera():
    """The scorer draws what was scored, to the pixel; and other sizes and cameras as a renderer of those does."""
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", 1, camera="front-side", textured=False)
    own = gym.make_vec("VLMRM/Humanoid-stand-v0", 1, camera=["paper", {"azimuth": 45.0}], textured=False)
    states = States(plain_model().qpos0[None].repeat(3, 0))
    states.rows[:, 2] += [0, 0.1, 0.2]
    seen = envs.scorer.frames(states)
    assert seen.shape[:2] == (3, 2)
    other = envs.scorer.frames(states, size=(64, 48), views=["paper", {"azimuth": 45.0}])
    assert other.shape == (3, 2, 64, 48, 3)
    np.testing.assert_array_equal(other, own.scorer.frames(states, size=(64, 48)))
    np.testing.assert_array_equal(envs.scorer.frames(states), seen)
    with pytest.raises(ValueError, match="`camera`"):
        envs.scorer.frames(states, views="nowhere")
    envs.close()
    own.close()
