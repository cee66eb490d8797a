"""Rewards that are learned from videos, at every door; and the networks and heads that they are made of."""

import copy
import json
import pickle
import shutil
from dataclasses import replace
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT, cartpole_frame
from hypothesis import given
from hypothesis import strategies as st

import vlmrm_gym
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.learning import demonstrations as fitting
from vlmrm_gym.learning.demonstrations import Footage, PairSampler, two_hot
from vlmrm_gym.learning.demonstrations_report import VideoMeasures, measure, rank_correlation
from vlmrm_gym.rewards import CLIPReward, from_mapping, load_reward, to_mapping
from vlmrm_gym.rewards.current_head import apply_head, pay
from vlmrm_gym.rewards.distance import BINS, DistanceNetwork, PlaceHead, StepHead

CART_POLE = "VLMRM/CartPole-v1"
SHORT = {"steps": 60, "every": 30}


def raising(seed, count=12):
    """A pole that is raised from 60 to 0 degrees, uint8 (T, H, W, 3)."""
    start, at = np.random.default_rng(seed).uniform([40, -1], [70, 1])
    return np.stack([cartpole_frame(angle, at) for angle in np.linspace(start, 0, count)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a reward that was learned from five videos, by the bundled model."""
    out = tmp_path_factory.mktemp("rewards") / "upright"
    videos = [raising(seed) for seed in range(5)]
    vlmrm_gym.fit_demonstrations(videos, encoder="tiny", out=out, device="cpu", options={"steps": 150, "every": 50})
    return out


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_the_mean_of_the_two_nearest_bins_is_the_distance(distances):
    rows = two_hot(torch.tensor(distances, dtype=torch.float64))
    assert ((rows > 0).sum(1) <= 2).all()
    np.testing.assert_allclose((rows @ torch.linspace(-1, 1, BINS, dtype=torch.float64)).numpy(), distances, atol=1e-9)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.integers(0, 99))
def test_pairs_are_frames_of_the_videos_at_the_distances_of_their_places(lengths, seed):
    places = [np.sort(np.random.default_rng(i).random(length)).astype(np.float32) for i, length in enumerate(lengths)]
    samples = [Footage(str(i), torch.empty(len(one), 0), torch.from_numpy(one)) for i, one in enumerate(places)]
    pairs = PairSampler(samples, seed).draw()
    every, video = np.concatenate(places), np.repeat(np.arange(len(lengths)), lengths)
    first, second = (pairs.frames[side].numpy() for side in (pairs.first, pairs.second))
    np.testing.assert_allclose(pairs.distances.numpy(), every[second] - every[first], atol=1e-6)
    assert np.mean(video[first] == video[second]) >= 448 / 512
    reverse = set(zip(first.tolist(), second.tolist(), strict=True))
    same = [pair for pair in reverse if video[pair[0]] == video[pair[1]]]
    assert np.mean([(b, a) in reverse for a, b in same]) > 0.8  # both orders; but for those of one video drawn twice


def test_close_frames_are_drawn_more_often():
    samples = [Footage(str(i), torch.empty(200, 0), torch.linspace(0, 1, 200)) for i in range(3)]
    sampler = PairSampler(samples, 0)
    distances = torch.cat([sampler.draw().distances for _ in range(50)]).abs()
    assert 0.35 < float((distances < 0.1).float().mean()) < 0.6  # of uniform pairs: 0.19
    assert float((distances > 0.5).float().mean()) > 0.1


@given(st.integers(0, 100))
def test_a_frame_is_at_distance_0_of_itself_and_going_back_costs_what_going_there_earned(seed):
    network = DistanceNetwork(5, model="tiny", seed=seed).requires_grad_(False)
    first, second = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(seed))
    np.testing.assert_allclose(network(first, second), -network(second, first), atol=1e-6)
    np.testing.assert_allclose(network(first, first), 0, atol=1e-7)
    assert (network(first, second).abs() <= 1).all()


def test_heads_pay_the_distance_from_the_state_before_or_from_where_videos_begin():
    network = DistanceNetwork(5, model="tiny", frames=9.0, seed=1).requires_grad_(False)
    network.start.fill_(0.3)
    features = torch.randn(8, 1, 5, generator=torch.Generator().manual_seed(0))
    every, head = features[:, 0], StepHead(network)
    expected = [9 * float(network(a[None], b[None])) for a, b in pairwise(every)]
    carry = head.begin(features[:1])
    whole = pay(head, features[1:].numpy(), carry)
    np.testing.assert_allclose(whole.rewards, expected, atol=1e-6)
    part = pay(head, features[1:4].numpy(), carry)
    rest = pay(head, features[4:].numpy(), part.carry)
    np.testing.assert_allclose(np.concatenate([part.rewards, rest.rewards]), expected, atol=1e-6)
    places = [float(network(torch.full((1, 5), 0.3), one[None])) for one in every]
    np.testing.assert_allclose(apply_head(PlaceHead(network), features.numpy()), places, atol=1e-6)


def test_rank_correlations_are_spearmans():
    assert rank_correlation(np.array([1, 2, 3, 4]), np.array([10, 20, 25, 90])) == pytest.approx(1)
    assert rank_correlation(np.array([1, 2, 3]), np.array([3, 2, 1])) == pytest.approx(-1)
    # ranks 1, 2, 3, 4 and 1.5, 1.5, 4, 3: deviations (-1.5, -.5, .5, 1.5) and (-1, -1, 1.5, .5)
    by_hand = (1.5 + 0.5 + 0.75 + 0.75) / np.sqrt(5 * 4.5)
    assert rank_correlation(np.array([1, 2, 3, 4]), np.array([0, 0, 9, 5])) == pytest.approx(by_hand)
    assert np.isnan(rank_correlation(np.array([1, 2]), np.array([7, 7])))


def test_a_reward_from_videos_of_poles_orders_held_out_ones_and_says_so(folder):
    figures = json.loads((folder / "fit.json").read_text())
    measures = figures["measures"]
    assert measures["of"] == "held out"
    assert measures["order"] > 0.9
    assert measures["backwards"] == pytest.approx(-measures["end"])
    assert measures["end"] > 0.5
    assert measures["warnings"] == []
    assert len(figures["videos"]["held_out"]) == 1
    assert (folder / "curves.png").stat().st_size > 10_000


def test_what_cannot_work_is_warned_of():
    network = DistanceNetwork(5, model="tiny", seed=2).requires_grad_(False)
    noise = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0))
    videos = [(one, torch.linspace(0, 1, 20)) for one in noise[:2]]
    there_and_back = torch.cat([noise[2], noise[2].flip(0)])
    figures, curves = measure(network, "held out", videos, [there_and_back, noise[2, :1]], [noise[2]])
    warned = " ".join(figures.warnings)
    assert "does not order the frames" in warned
    assert "played backwards" in warned
    assert figures.random == pytest.approx(float(network(noise[2, :1].expand(20, 5), noise[2]).max()), abs=1e-6)
    assert figures.negatives == pytest.approx(float(network.places(noise[2]).max()), abs=1e-6)
    good = VideoMeasures("held out", 1.0, 0.9, -0.9, 0.4, random=0.4, negatives=0.4)
    assert not good.warnings
    assert "Random behaviour reaches 0.50" in replace(good, random=0.5).warnings[0]
    assert "A held-out negative reaches 0.60" in replace(good, negatives=0.6).warnings[0]
    assert [one.kind for one in curves] == ["held out", "backwards", "cut"] * 2 + ["random"] * 2 + ["negatives"]


def play(make, steps=6, **options):
    envs = make(CART_POLE, episode_length=steps, **options)
    vector = isinstance(envs, gym.vector.VectorEnv)
    envs.reset(seed=3)
    rewards = []
    for _ in range(steps):
        _, reward, _, _, infos = envs.step(np.ones(envs.num_envs, np.int64) if vector else 1)
        rewards.append(reward)
    late = infos["vlm_rewards"][0] if vector else np.array(rewards)
    envs.close()
    return late


@pytest.mark.parametrize("measured", ["step", "place"])
def test_it_is_a_reward_at_every_door(measured, folder):
    reward = vlmrm_gym.Demonstrations(head=str(folder / "head.safetensors"), measure=measured)
    one = play(gym.make, reward=reward)
    vector = play(gym.make_vec, num_envs=2, reward=to_mapping(reward))
    np.testing.assert_allclose(vector, one, atol=1e-5)
    if measured == "step":
        np.testing.assert_allclose(play(gym.make, reward=f"{folder}/"), one, atol=1e-6)
        added = play(gym.make, reward=2 * reward + vlmrm_gym.CLIP(prompt=TASK_PROMPT))
        np.testing.assert_allclose(added, 2 * one + play(gym.make, prompt=TASK_PROMPT), atol=1e-5)
    else:
        success = vlmrm_gym.Success(reward, threshold=float(one[3]) - 1e-4, hold=1)
        assert play(gym.make, reward=success).tolist() == (one >= one[3] - 1e-4).tolist()


@pytest.mark.slow
def test_a_worker_sends_its_head(folder):
    one, worker = (play(gym.make_vec, num_envs=1, reward=str(folder), num_workers=count) for count in (0, 1))
    np.testing.assert_allclose(worker, one, atol=1e-5)


def test_rewards_are_those_of_the_network_on_the_frames(folder):
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    scored = vlmrm_gym.VLMReward(env, reward=vlmrm_gym.Demonstrations.load(folder))
    scored.reset(seed=1)
    frames, rewards = [env.render()], []
    for _ in range(4):
        rewards.append(scored.step(1)[1])
        frames.append(env.render())
    network, model = DistanceNetwork.load(folder), CLIPReward("tiny", prompt=TASK_PROMPT, device="cpu")
    features = model.encode(np.stack(frames))
    expected = network.frames * network(features[:-1], features[1:]).numpy()
    np.testing.assert_allclose(rewards, expected, atol=0.3)  # scored frames are drawn smaller than these
    assert np.corrcoef(rewards, expected)[0, 1] > 0.9


def test_it_is_a_value_that_is_saved_moved_copied_and_pickled(folder, tmp_path):
    reward = vlmrm_gym.Demonstrations.load(folder)
    assert from_mapping(json.loads(json.dumps(to_mapping(reward)))) == reward
    assert copy.deepcopy(reward) == pickle.loads(pickle.dumps(reward)) == reward
    mix = vlmrm_gym.TaskReward() + 0.5 * reward + vlmrm_gym.CLIP(goal_images=[cartpole_frame(0)])
    mix.save(tmp_path / "mix")
    shutil.move(tmp_path / "mix", tmp_path / "moved")
    assert sorted(one.name for one in (tmp_path / "moved").iterdir()) == [
        "head.safetensors",
        "picture.png",
        "reward.json",
    ]
    moved = load_reward(tmp_path / "moved")
    np.testing.assert_allclose(play(gym.make, reward=moved), play(gym.make, reward=mix), atol=1e-6)
    with pytest.raises(InputError, match=r"moved must be a reward of the kind 'demonstrations'. Received 'sum'"):
        vlmrm_gym.Demonstrations.load(tmp_path / "moved")


def test_heads_of_other_features_are_refused(folder):
    head = str(folder / "head.safetensors")
    with pytest.raises(ValueError, match=r"`head` must be of the features 'tiny, shortest'. .* 'tiny, squash'"):
        vlmrm_gym.Demonstrations(head=head, resize_mode="shortest").build("cpu")
    with pytest.raises(ValueError, match="`measure` must be one of"):
        vlmrm_gym.Demonstrations(head=head, measure="both")


@pytest.mark.slow
def test_a_tower_that_is_learned_from_videos_knows_a_new_world_and_is_a_model_like_others(tmp_path):
    """A square goes from the left to the right, at another height in each video."""

    def going(seed, count=15):
        frames = np.full((count, 64, 64, 3), 40, dtype=np.uint8)
        top = int(np.random.default_rng(seed).integers(48))
        for left, frame in zip(np.linspace(0, 48, count).round().astype(int), frames, strict=True):
            frame[top : top + 16, left : left + 16] = (200, 90, 30)
        return frames

    videos = [going(seed) for seed in range(6)]
    options = {"steps": 120, "every": 40}
    reward = vlmrm_gym.fit_demonstrations(videos, out=tmp_path / "r", device="cpu", options=options)
    measures = json.loads((tmp_path / "r" / "fit.json").read_text())["measures"]
    assert measures["order"] > 0.9
    model = reward.build("cpu")
    video = going(9)
    assert float(model(video).sum()) > 0.5 * len(video)  # 1 a step where it is as fast as in the videos
    assert float(model(video[::-1].copy()).sum()) == pytest.approx(-float(model(video).sum()), abs=1e-3)
    shutil.move(tmp_path / "r", tmp_path / "moved")
    moved = load_reward(tmp_path / "moved").build("cpu")
    assert moved.fingerprint == model.fingerprint
    np.testing.assert_allclose(moved(video), model(video), atol=1e-6)
    tower = f"cnn:{tmp_path / 'moved' / 'head.safetensors'}"
    similar = vlmrm_gym.CLIP(goal_images=[video[-1]], model=tower).build("cpu")(video)
    assert similar.argmax() == len(video) - 1
    with pytest.raises(ValueError, match="`prompt` is not for a model that was learned from videos"):
        vlmrm_gym.CLIP(prompt="a square", model=tower).build("cpu")
    with pytest.raises(FileNotFoundError, match=r"`model`: the file .* does not exist"):
        vlmrm_gym.CLIP(goal_images=[video[-1]], model="cnn:none").build("cpu")


def test_fitting_again_gives_the_same_numbers():
    frames = [torch.randn(10, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    samples = [Footage(str(i), one, torch.linspace(0, 1, 10)) for i, one in enumerate(frames)]
    networks = []
    for _ in range(2):
        network = DistanceNetwork(4, model="tiny", seed=0)
        options, cpu = fitting.VideoFitOptions(**SHORT), torch.device("cpu")
        fitting.fit_network(network, samples[:2], samples[2:], options, device=cpu, seed=0, say=lambda *_: None)
        networks.append(network.state_dict())
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])


def test_fitting_stops_where_held_out_videos_get_no_better():
    samples = [
        Footage(str(i), torch.randn(10, 4, generator=torch.Generator().manual_seed(i)), torch.linspace(0, 1, 10))
        for i in range(4)
    ]
    options = fitting.VideoFitOptions(steps=1_000, every=10, patience=3)
    network = DistanceNetwork(4, model="tiny", seed=0)
    losses = []
    figures = fitting.fit_network(
        network,
        samples[:2],
        samples[2:],
        options,
        device=torch.device("cpu"),
        seed=0,
        say=lambda _, loss: losses.append(loss),
    )
    assert figures["steps"] < 1_000
    assert figures["held_out_loss"] == np.nanmin(losses)
    assert fitting.evaluate(network, samples[2:], torch.device("cpu")) == pytest.approx(figures["held_out_loss"])


def test_a_preference_starts_from_the_progress_that_videos_show(folder):
    """Before any answer it is the reward; it goes into sums; answers correct it."""
    reward = vlmrm_gym.Preference(prompt="an upright pole", init=f"{folder}/")
    envs = gym.make_vec(CART_POLE, 1, episode_length=8, reward=reward)
    learner = vlmrm_gym.PreferenceLearner(envs, vlmrm_gym.GroundTruthLabeler())
    network, model = DistanceNetwork.load(folder), CLIPReward("tiny", prompt=TASK_PROMPT, device="cpu")
    frames = raising(7)
    features = model.encode(frames)
    seen = 5 * network(network.start.expand_as(features), features).numpy()
    expected = 5 * np.tanh((seen - 2.5) / (5 / np.sqrt(12)) / 5)
    np.testing.assert_allclose(learner.head(features[:, None]).detach(), expected, atol=1e-5)
    envs.reset(seed=0)
    infos = [envs.step(np.array([1]))[4] for _ in range(8)][-1]
    assert np.isfinite(infos["vlm_rewards"][0]).all()
    envs.close()
    loaded = vlmrm_gym.rewards.PreferenceHead.from_bytes(learner.head.to_bytes())
    np.testing.assert_allclose(loaded(features[:, None]), expected, atol=1e-5)
