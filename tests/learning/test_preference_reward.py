"""`Preference` at every door: to be learned, and frozen."""

import json
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file

import vlmrm_gym
from vlmrm_gym.data.episode_log import EpisodeLog
from vlmrm_gym.rewards import CLIPReward, PreferenceHead, from_mapping, to_mapping

CART_POLE = "VLMRM/CartPole-v1"
FINGERPRINT = "tiny, squash"


@pytest.fixture(scope="module")
def head():
    """A head of one view of the bundled model."""
    made = PreferenceHead((1, 128), fingerprint=FINGERPRINT, prompt=TASK_PROMPT, seed=3)
    made.standardise(
        torch.nn.functional.normalize(torch.randn(100, 1, 128, generator=torch.Generator().manual_seed(0)))
    )
    return made


@pytest.fixture(scope="module")
def path(head, tmp_path_factory):
    file = tmp_path_factory.mktemp("heads") / "head.safetensors"
    head.save(file)
    return str(file)


def expected_rewards(head, frames):
    features = CLIPReward("tiny", prompt=TASK_PROMPT).encode(frames)
    return head(features[:, None]).detach().numpy()


def test_environments_with_a_reward_to_be_learned_have_features_and_a_log_and_no_rewards_yet():
    log = EpisodeLog(10**6)
    for passed in (None, log):
        envs = gym.make_vec(
            CART_POLE, 2, episode_length=4, reward=vlmrm_gym.Preference(prompt="up"), episode_log=passed
        )
        assert passed is None or envs.episode_log is log
        envs.reset(seed=0)
        infos = [envs.step(envs.action_space.sample())[4] for _ in range(4)][-1]
        assert [len(episode) for episode in envs.episode_log.episodes] == [4, 4]
        assert np.isnan(infos["vlm_rewards"][1]).all()
        assert infos["vlm_features"][1].shape == (4, 1, 128)
        assert envs.head.head is None
        envs.close()
    with pytest.raises(ValueError, match=r"`reward` has no head yet.* pass vlmrm_gym.Preference\(head=...\)"):
        gym.make(CART_POLE, reward=vlmrm_gym.Preference(prompt="up"))  # it scores every step


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_saved_head_is_a_reward_at_every_door(num_workers, head, path):
    reward = vlmrm_gym.Preference(head=path)
    env = gym.make(CART_POLE, reward=reward, episode_length=3)
    envs = gym.make_vec(CART_POLE, 1, reward=to_mapping(reward), episode_length=3)
    options = {"episode_length": 3, "num_workers": num_workers, "return_features": True}
    workers = gym.make_vec(CART_POLE, 1, reward=reward, **options)
    for each in (env, envs, workers):
        each.reset(seed=0)
    steps, frames = [], []
    for _ in range(3):
        steps.append(env.step(0)[1])
        frames.append(env.render())
        delivered = [each.step(np.array([0]))[4]["vlm_rewards"][0] for each in (envs, workers)]
    for rewards in delivered:
        np.testing.assert_allclose(rewards, steps, atol=1e-5)
    # The frames of `render` are larger than those that are scored.
    np.testing.assert_allclose(steps, expected_rewards(head, np.stack(frames)), atol=0.2)
    for each in (env, envs, workers):
        each.close()


def test_views_are_scored_together(tmp_path):
    """The reward is of the features of both views, in their order; there is nothing to combine."""
    head = PreferenceHead((2, 128), fingerprint=FINGERPRINT)
    head.save(tmp_path / "head")
    reward = vlmrm_gym.Preference(head=str(tmp_path / "head"))
    make = lambda **options: gym.make_vec(  # noqa: E731
        "VLMRM/Humanoid-stand-v0", 1, camera="front-side", reward=reward, episode_length=2, **options
    )
    with pytest.raises(ValueError, match="`combine_views` is not for a reward that sees all views at once"):
        make(combine_views="mean")
    envs = make(return_features=True)
    envs.reset(seed=0)
    infos = [envs.step(envs.action_space.sample())[4] for _ in range(2)][-1]
    features = torch.from_numpy(infos["vlm_features"][0])
    assert features.shape == (2, 2, 128)
    np.testing.assert_allclose(infos["vlm_rewards"][0], head(features).detach().numpy(), atol=1e-5)
    assert not torch.allclose(head(features.flip(1)), head(features))
    envs.close()


def test_a_file_of_a_head_has_everything_and_no_pickle(head, path):
    loaded = PreferenceHead.load(path)
    assert loaded.to_bytes() == head.to_bytes() == Path(path).read_bytes()
    assert (loaded.prompt, loaded.fingerprint, loaded.ensemble) == (TASK_PROMPT, FINGERPRINT, 3)
    with safe_open(path, "pt") as file:
        assert len(file.keys()) == len(head.state_dict())


def test_files_that_are_no_heads_of_these_features_are_refused(head, path, tmp_path):
    other = PreferenceHead((1, 128), fingerprint="ViT-B-32/openai, squash")
    other.save(tmp_path / "other")
    save_file({"weight": torch.ones(3)}, tmp_path / "weights")
    huge = {"vlmrm_gym.preference_head": json.dumps({"shape": [1, 128], "hidden_size": 10**8})}
    save_file(load_file(path), tmp_path / "huge", huge)
    (tmp_path / "damaged").write_bytes(Path(path).read_bytes()[:-100])
    (tmp_path / "text").write_text("a head")
    os.mkfifo(tmp_path / "pipe")
    for name, error, message in [
        ("nowhere", FileNotFoundError, "which does not exist"),
        ("other", ValueError, "must be of the features 'tiny, squash'"),
        ("weights", ValueError, "must be a head that PreferenceHead.save wrote"),
        ("huge", ValueError, "size mismatch for weights.0"),  # and nothing of that size was allocated
        ("damaged", ValueError, "must be a head that PreferenceHead.save wrote"),
        ("text", ValueError, "must be a head that PreferenceHead.save wrote"),
        ("pipe", ValueError, r"must be a regular file\. Received a pipe"),
    ]:
        with pytest.raises(error, match=message):
            vlmrm_gym.Preference(head=str(tmp_path / name), model="tiny").build("cpu")


def test_numbers_and_settings_of_a_head_are_checked():
    for change, known, message in [
        (lambda head: head.reward_std.fill_(torch.inf), {}, "`reward_std` must be finite"),
        (lambda head: head.weights[1].data.fill_(torch.nan), {}, "`weights.1` must be finite"),
        (lambda head: head.double(), {}, "must be numbers in float32"),
        (None, {"shape": [0]}, r"must be a head that PreferenceHead.save wrote. Received another: .*division"),
        (None, {"ensemble": "3"}, "must be a head"),
        (None, {"prompt": ["up"]}, "its prompt must be a text"),
    ]:
        head = PreferenceHead((1, 4), hidden_size=2, fingerprint="tiny, squash", prompt="up")
        if change is not None:
            change(head)
        settings = {name: getattr(head, name) for name in head.arguments} | known
        content = save(load(head.to_bytes()), {head.key: json.dumps(settings)})
        with pytest.raises(ValueError, match=message):
            PreferenceHead.from_bytes(content)


def test_a_specification_is_checked_and_survives_json():
    reward = vlmrm_gym.Preference(prompt="up", ensemble=5, resize_mode="longest")
    assert from_mapping(json.loads(json.dumps(to_mapping(reward)))) == reward
    for fields, error, message in [
        ({}, ValueError, "`prompt` must be a text, or `head` the file"),
        ({"prompt": ["up"]}, TypeError, "`prompt` must be a text"),
        ({"prompt": " "}, ValueError, "`prompt` must not be empty"),
        ({"prompt": "up", "ensemble": 0}, ValueError, "`ensemble` must be an integer of at least 1"),
        ({"prompt": "up", "model": 3}, TypeError, "`model` must be a string"),
    ]:
        with pytest.raises(error, match=message):
            vlmrm_gym.Preference(**fields)
