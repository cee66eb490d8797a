"""A reward from videos that is refined by episodes that fail: the head, and the callback of Stable-Baselines3."""

import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT, cartpole_frame
from stable_baselines3 import DQN, PPO

import vlmrm_gym
from vlmrm_gym.learning import RefinedPlaceHead
from vlmrm_gym.rewards.current_head import apply_head
from vlmrm_gym.rewards.distance import SHOWN, DistanceNetwork
from vlmrm_gym.sb3 import DeferredReplayBuffer, DeferredRolloutBuffer, RefineCallback, RewardHandle, make_vec_env

GENERATOR = torch.Generator().manual_seed(0)


def make_network(videos):
    network = DistanceNetwork(videos.shape[-1], model="tiny", seed=1).requires_grad_(False)
    network.remember([videos[:30], videos[30:]])
    return network


@pytest.fixture(scope="module")
def videos():
    """Features of two videos that differ in the first number alone, float32 (60, 5)."""
    rows = torch.full((60, 5), 0.1)
    rows[:, 0] = torch.linspace(-1, 1, 30).repeat(2)
    return rows


def fit(head, failed, count=5):
    for _ in range(count):
        head.add(failed[:, None].numpy())
        head.fit()


def test_states_of_failures_are_worth_less_and_those_of_videos_keep_their_places(videos):
    head = RefinedPlaceHead(make_network(videos))
    failed = videos + torch.tensor([0, 1, 0, 0, 0])  # in a direction that the videos do not know
    fit(head, failed)
    with torch.no_grad():
        assert head.likeness(videos).mean() > 0.8
        assert head.likeness(failed).mean() < 0.2
        expected = head.network.places(failed).clamp_min(0) * head.likeness(failed)
    paid = apply_head(head, failed[:, None].numpy())
    np.testing.assert_allclose(paid, expected, atol=1e-6)
    assert (paid >= 0).all()
    both = torch.stack([videos, failed], 1).numpy()  # two views
    np.testing.assert_allclose(apply_head(head, both), np.minimum(apply_head(head, both[:, :1]), paid), atol=1e-6)


def test_a_place_that_failures_and_videos_share_is_worth_half(videos):
    head = RefinedPlaceHead(make_network(videos))
    fit(head, videos)
    np.testing.assert_allclose(head.likeness(videos).detach(), 0.5, atol=0.1)


def test_the_same_seed_and_failures_make_the_same_head(videos):
    heads = [RefinedPlaceHead(make_network(videos), seed=seed) for seed in (3, 3, 4)]
    for head in heads:
        torch.rand(7)  # the program's own random numbers do not matter
        fit(head, videos.roll(1, 1), 2)
    first, second, other = (head.likeness(videos).detach() for head in heads)
    assert first.equal(second)
    assert not first.allclose(other)


def test_a_thousand_failures_are_kept_of_any_time(videos):
    head = RefinedPlaceHead(make_network(videos))
    for number in range(3_000):
        head.add(np.full((1, 1, 5), number))
    kept = np.array([float(one[0, 0]) for one in head._failed])
    assert head.num_failed == 3_000
    assert len(kept) == 1_000
    assert abs(kept.mean() - 1_500) < 100
    assert [float(one[0, 0]) for one in head._newest] == list(range(2_980, 3_000))


def test_a_network_keeps_some_frames_of_its_videos(tmp_path):
    long = torch.randn(3_000, 4, generator=GENERATOR)
    network = DistanceNetwork(4, model="tiny")
    network.remember([long[:1_000], long[1_000:]])
    network.save(tmp_path / "head.safetensors")
    again = DistanceNetwork.load(tmp_path / "head.safetensors")
    assert again.videos.shape == (SHOWN, 4)
    assert again.videos[0].equal(long[0])
    assert again.videos[-1].equal(long[-1])
    np.testing.assert_allclose(again.start, (long[0] + long[1_000]) / 2)


@pytest.fixture(scope="module")
def raising(tmp_path_factory):
    """A reward from videos of poles that are raised."""
    poles = [np.stack([cartpole_frame(angle, at) for angle in np.linspace(60, 0, 8)]) for at in (-0.5, 0, 0.5)]
    out = tmp_path_factory.mktemp("rewards") / "raising"
    return vlmrm_gym.fit_demonstrations(poles, encoder="tiny", out=out, measure="place", options={"steps": 20})


def make_envs(reward, **options):
    return make_vec_env("VLMRM/CartPole-v1", n_envs=2, reward=reward, episode_length=25, **options)


def test_training_refines_the_reward_and_makes_stored_rewards_anew(raising):
    envs = make_envs(raising, return_features=True, task_reward_weight=0.5)
    model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=50, seed=0)
    seen = []

    def failed(episode):
        seen.append(episode)
        return len(seen) % 2 == 0

    callback = RefineCallback(every=100, failed=failed)
    model.learn(200, callback=callback)
    assert callback.head.num_failed == len(seen) // 2 > 0
    assert all(episode["l"] == 25 for episode in seen)
    assert envs.envs.head.version == 1 + 2
    stored = model.replay_buffer.state_dict()
    features, rewards = stored["features"][:, 0], stored["rewards"].ravel()
    np.testing.assert_allclose(rewards, apply_head(callback.head, features) + stored["task_rewards"].ravel(), atol=1e-5)
    envs.close()


def test_on_policy_algorithms_learn_from_the_refined_reward_of_the_rollouts_to_come(raising):
    envs = make_envs(raising, return_features=True)
    buffer = {"rollout_buffer_class": DeferredRolloutBuffer, "rollout_buffer_kwargs": {"rewards": RewardHandle(envs)}}
    model = PPO("MlpPolicy", envs, n_steps=50, batch_size=50, n_epochs=1, **buffer)
    callback = RefineCallback(every=100, failed=lambda episode: True)
    model.learn(200, callback=callback)
    assert envs.envs.head.head.members[0].head is callback.head
    assert callback.head.num_failed == 8
    envs.close()


def test_views_are_combined_as_the_environments_say(raising):
    envs = make_vec_env(
        "VLMRM/Humanoid-stand-v0",
        n_envs=2,
        reward=raising,
        episode_length=5,
        camera="front-side",
        combine_views="mean",
        return_features=True,
    )
    buffer = {"rollout_buffer_class": DeferredRolloutBuffer, "rollout_buffer_kwargs": {"rewards": RewardHandle(envs)}}
    model = PPO("MlpPolicy", envs, n_steps=10, batch_size=20, n_epochs=1, **buffer)
    callback = RefineCallback(every=10, failed=lambda episode: True)
    model.learn(20, callback=callback)
    features = torch.rand(6, 2, 128, generator=GENERATOR).numpy()
    views = [apply_head(callback.head, features[:, view : view + 1]) for view in range(2)]
    np.testing.assert_allclose(envs.envs.head(features), np.mean(views, 0), atol=1e-6)
    assert callback.head.num_failed == 4
    envs.close()


def test_an_episode_fails_without_a_success_or_where_none_is_defined_without_reward():
    failed = RefineCallback()._failed
    assert failed({"success": 0.0, "task_return": 5.0})
    assert not failed({"success": 0.1, "task_return": 0.0})
    assert [failed({"task_return": value}) for value in (0.0, -3.0, 0.5)] == [True, True, False]


def test_other_environments_are_refused_at_the_door(raising):
    cases = [
        (vlmrm_gym.CLIP(prompt=TASK_PROMPT), {}, r'VLMVecEnv with Demonstrations\(measure="place"\)'),
        (raising.__class__(head=raising.head), {}, "place"),
        (raising, {"return_features": False}, "return_features=True"),
    ]
    for reward, options, message in cases:
        envs = make_envs(reward, **{"return_features": True, **options})
        model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=50)
        with pytest.raises(ValueError, match=message):
            model.learn(200, callback=RefineCallback(every=50))
        envs.close()
    with pytest.raises(ValueError, match="every"):
        RefineCallback(every=0)
