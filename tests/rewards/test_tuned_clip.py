"""`TunedCLIP` at every door: as it begins, and with a head that was saved."""

import json
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from safetensors import safe_open
from safetensors.torch import save_file

import vlmrm_gym
from vlmrm_gym.rewards import PreferenceHead, TunedHead, from_mapping, to_mapping
from vlmrm_gym.training.checks import complete, find_specification
from vlmrm_gym.training.config import Config, RewardConfig
from vlmrm_gym.training.config_file import ConfigError

CART_POLE, FINGERPRINT = "VLMRM/CartPole-v1", "tiny, squash"


def made_head(seed=0, **options):
    """A head of the bundled model that is no longer what it began as."""
    head = TunedHead(128, **{"fingerprint": FINGERPRINT, "prompt": TASK_PROMPT, **options})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in (*head.parameters(), head.text):
            one.copy_(0.1 * torch.randn(one.shape, generator=generator))
    return head.requires_grad_(False)


def expected_cosine(head, features):
    """By NumPy, of features (B, D)."""
    weights = {name: one.numpy().astype(np.float64) for name, one in head.state_dict().items()}

    def residual(name, x):
        hidden = np.maximum(x @ weights[f"{name}.0.weight"].T + weights[f"{name}.0.bias"], 0)
        made = x + hidden @ weights[f"{name}.2.weight"].T + weights[f"{name}.2.bias"]
        return made / np.linalg.norm(made, axis=-1, keepdims=True)

    return residual("_image", features) @ residual("_text", weights["text"])


def play(envs, steps):
    """The infos of the step that ends an episode, after the same actions each time."""
    envs.reset(seed=0)
    envs.action_space.seed(0)
    infos = [envs.step(envs.action_space.sample())[4] for _ in range(steps)][-1]
    envs.close()
    return infos


@pytest.mark.parametrize(("id", "options"), [(CART_POLE, {}), ("VLMRM/Humanoid-stand-v0", {"camera": "front-side"})])
def test_it_begins_as_clip(id, options):
    """Of several views it is the lowest, as CLIP's by default."""
    rewards = vlmrm_gym.CLIP(prompt=TASK_PROMPT), vlmrm_gym.TunedCLIP(prompt=TASK_PROMPT, weight=0.5)
    clip, tuned = (play(gym.make_vec(id, 1, episode_length=3, reward=reward, **options), 3) for reward in rewards)
    np.testing.assert_allclose(tuned["vlm_rewards"][0], 0.5 * clip["vlm_rewards"][0], atol=1e-6)
    assert np.ptp(tuned["vlm_rewards"][0]) > 0


def test_the_task_reward_is_added_by_its_weight():
    reward = vlmrm_gym.TunedCLIP(prompt=TASK_PROMPT)
    env, clip = (gym.make(CART_POLE, reward=one) for one in (reward, vlmrm_gym.CLIP(prompt=TASK_PROMPT)))
    both = gym.make(CART_POLE, reward=reward, task_reward_weight=2)
    for each in (env, clip, both):
        each.reset(seed=0)
    alone, unweighted, added = (each.step(0)[1] for each in (env, clip, both))
    assert alone == pytest.approx(0.05 * unweighted, abs=1e-6)
    assert added == pytest.approx(alone + 2, abs=1e-6)


def test_environments_have_features_and_a_log_without_being_asked():
    envs = gym.make_vec(CART_POLE, 1, episode_length=4, reward=vlmrm_gym.TunedCLIP(prompt="up"))
    infos = play(envs, 4)
    assert infos["vlm_features"][0].shape == (4, 1, 128)
    assert [len(episode) for episode in envs.episode_log.episodes] == [4]


def test_a_saved_head_is_a_reward_at_every_door(tmp_path):
    head = made_head(hidden_size=16, weight=3.0)
    head.save(tmp_path / "head")
    reward = vlmrm_gym.TunedCLIP(head=str(tmp_path / "head"))
    options = {"episode_length": 3, "return_features": True}
    infos = play(gym.make_vec(CART_POLE, 1, reward=reward, **options), 3)
    workers = play(gym.make_vec(CART_POLE, 1, reward=to_mapping(reward), num_workers=1, **options), 3)
    expected = 3 * expected_cosine(head, infos["vlm_features"][0][:, 0].astype(np.float64))
    np.testing.assert_allclose(infos["vlm_rewards"][0], expected, atol=1e-5)
    np.testing.assert_allclose(workers["vlm_rewards"][0], expected, atol=1e-5)
    env = gym.make(CART_POLE, reward=reward)
    env.reset(seed=0)
    envs = gym.make_vec(CART_POLE, 1, reward=reward)
    envs.action_space.seed(0)
    actions = [int(envs.action_space.sample()[0]) for _ in range(3)]
    np.testing.assert_allclose([env.step(action)[1] for action in actions], expected, atol=1e-5)
    env.close()
    envs.close()


def test_a_file_of_a_head_has_everything_and_no_pickle(tmp_path):
    head = made_head(hidden_size=16, weight=0.25)
    head.save(tmp_path / "head")
    loaded = TunedHead.load(tmp_path / "head")
    assert loaded.to_bytes() == head.to_bytes() == (tmp_path / "head").read_bytes()
    assert (loaded.prompt, loaded.fingerprint, loaded.weight) == (TASK_PROMPT, FINGERPRINT, 0.25)
    with safe_open(tmp_path / "head", "pt") as file:
        assert set(file.keys()) == set(head.state_dict())


def test_files_that_are_no_heads_of_these_features_are_refused(tmp_path):
    made_head(fingerprint="ViT-B-32/openai, squash").save(tmp_path / "other")
    PreferenceHead((1, 128), fingerprint=FINGERPRINT).save(tmp_path / "preference")
    huge = {"vlmrm_gym.tuned_head": json.dumps({"size": 128, "hidden_size": 10**9})}
    save_file(made_head().state_dict(), tmp_path / "huge", huge)
    (tmp_path / "damaged").write_bytes(made_head().to_bytes()[:-100])
    for name, error, message in [
        ("nowhere", FileNotFoundError, "which does not exist"),
        ("other", ValueError, "must be of the features 'tiny, squash'"),
        ("preference", ValueError, "must be a head that TunedHead.save wrote"),
        ("huge", ValueError, "size mismatch for _image.0.weight"),  # and nothing of that size was allocated
        ("damaged", ValueError, "must be a head that TunedHead.save wrote"),
    ]:
        with pytest.raises(error, match=message):
            vlmrm_gym.TunedCLIP(head=str(tmp_path / name)).build("cpu")


def test_a_specification_is_checked_and_survives_json():
    reward = vlmrm_gym.TunedCLIP(prompt="up", weight=1, hidden_size=8, resize_mode="longest")
    assert from_mapping(json.loads(json.dumps(to_mapping(reward)))) == reward
    for fields, error, message in [
        ({}, ValueError, "`prompt` must be a text, or `head` the file"),
        ({"prompt": 3}, TypeError, "`prompt` must be a text. Received 3"),
        ({"prompt": "up", "weight": 0}, ValueError, "`weight` must be a finite number above 0. Received 0"),
        ({"prompt": "up", "weight": math.inf}, ValueError, "`weight` must be a finite number above 0. Received inf"),
        ({"prompt": "up", "hidden_size": 0}, ValueError, "`hidden_size` must be an integer of at least 1"),
    ]:
        with pytest.raises(error, match=message):
            vlmrm_gym.TunedCLIP(**fields)


def test_its_views_are_not_combined_otherwise():
    with pytest.raises(ValueError, match="`combine_views` is not for a reward that sees all views at once"):
        gym.make_vec(
            "VLMRM/Humanoid-stand-v0",
            1,
            camera="front-side",
            combine_views="mean",
            reward=vlmrm_gym.TunedCLIP(prompt="up"),
        )


def test_the_training_command_takes_a_head_and_does_not_tune(tmp_path):
    made_head().save(tmp_path / "head")
    kwargs = {"head": str(tmp_path / "head")}
    config = complete(Config(env_name=CART_POLE, reward=RewardConfig(name="tuned_clip", kwargs=kwargs)))
    assert find_specification(config) == vlmrm_gym.TunedCLIP(prompt=TASK_PROMPT, **kwargs)
    with pytest.raises(ConfigError, match=r"must have a `head` here, its file\. .*TuningCallback tunes one"):
        complete(Config(env_name=CART_POLE, reward=RewardConfig(name="tuned_clip")))
