"""RewardDelivery: what says which transitions rewards belong to. The model is a list of each environment's own."""

import itertools
import os
import signal
import threading

import gymnasium as gym
import numpy as np
from backends import children
from counting_env import Paid
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_models import TwoFeatures

import vlmrm_gym
from vlmrm_gym import EpisodeLog
from vlmrm_gym.rewards import current_head
from vlmrm_gym.rewards.model import ClipShape, fixed_size
from vlmrm_gym.scoring.books import BookRules, EnvironmentBooks
from vlmrm_gym.scoring.delivery import Scored
from vlmrm_gym.scoring.remote import RemoteScorer


def make(lengths, **options):
    """Environments whose rewards are twice the count plus 1, plus a quarter of their own, and these environments."""
    bases = [Paid(own, first=1_000 * number) for number, own in enumerate(lengths)]
    options = {"reward": "reward_models:TwoFeatures", "task_reward_weight": 0.25, "return_features": True, **options}
    return vlmrm_gym.VLMRewardVectorEnv([lambda base=base: base for base in bases], **options), bases


def check(infos, bases, arrived):
    """What has arrived belongs to the oldest transitions without rewards; `arrived` counts those with."""
    for i in np.flatnonzero(infos["_vlm_rewards"]):
        count, start = len(infos["vlm_rewards"][i]), arrived[i]
        numbers = np.array(bases[i].expected_rewards[start : start + count])
        assert infos["vlm_reward_start"][i] == start
        assert infos["vlm_episode_index"][i] == len(set(bases[i].episodes[: start + 1])) - 1  # without empty ones
        assert infos["vlm_rewards"][i].dtype == np.float32
        np.testing.assert_array_equal(infos["vlm_rewards"][i], 2 * numbers + 1 + 0.25 * (numbers % 7))
        if "vlm_features" in infos:
            np.testing.assert_array_equal(infos["vlm_features"][i][:, 0, 0], numbers)
            np.testing.assert_array_equal(infos["vlm_task_rewards"][i], 0.25 * (numbers % 7))
            assert infos["vlm_reward_version"][i] == 1
        arrived[i] += count
    for name in [name for name in infos if name.startswith("vlm_") and name != "vlm_step_index"]:
        np.testing.assert_array_equal(infos[f"_{name}"], infos["_vlm_rewards"])


def check_step(step, bases, before, only_reset):
    """What a step returns at once: NaN, the own reward and the index of each transition; 0 where there is none."""
    _, rewards, _, _, infos = step
    np.testing.assert_array_equal(np.isnan(rewards), ~only_reset)
    np.testing.assert_array_equal(rewards[only_reset], 0)
    np.testing.assert_array_equal(
        infos["task_reward"], np.where(only_reset, 0, [base.expected_rewards[-1] % 7 for base in bases])
    )
    for name in ("_task_reward", "_vlm_step_index"):
        np.testing.assert_array_equal(infos[name], ~only_reset)
    np.testing.assert_array_equal(infos["vlm_step_index"][~only_reset], np.array(before)[~only_reset])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4),
    mode=st.sampled_from(AutoresetMode),
    options=st.fixed_dictionaries(
        {
            "overlap": st.booleans(),
            "return_features": st.booleans(),
            "max_pending_bytes": st.sampled_from([1, 40, 500, 2**30]),
            "reward_kwargs": st.builds(dict, batch_size=st.integers(1, 9)),
        }
    ),
    calls=st.lists(st.sampled_from(["step"] * 8 + ["flush", "reset"]), min_size=1, max_size=40),
)
def test_every_transition_gets_its_own_reward_once(lengths, mode, options, calls):
    """Contracts 1, 2 and 4: in order, and starts and indices say whose. None is left out.

    For any episode lengths, autoreset modes, flushes, resets, batch and chunk sizes.
    """
    envs, bases = make(lengths, autoreset_mode=mode, **options)
    envs.reset(seed=0)
    arrived, ended = [0] * len(bases), np.zeros(len(bases), dtype=bool)
    for call in calls:
        if call == "step":
            if mode is AutoresetMode.DISABLED and ended.any():
                check(envs.reset(options={"reset_mask": ended})[1], bases, arrived)
            before = [len(base.expected_rewards) for base in bases]
            step = envs.step(np.zeros(len(bases), dtype=int))
            check_step(step, bases, before, ended & (mode is AutoresetMode.NEXT_STEP))
            ended, infos = step[2] | step[3], step[4]
        else:
            infos = envs.flush() if call == "flush" else envs.reset()[1]
            ended = ended & (call == "flush")
        check(infos, bases, arrived)
        complete = np.full(len(bases), True) if call == "flush" else ended & (not options["overlap"])
        assert all(arrived[i] == len(bases[i].expected_rewards) for i in np.flatnonzero(complete))
    check(envs.flush(), bases, arrived)
    assert arrived == [len(base.expected_rewards) for base in bases]
    assert envs.pending_bytes == 0
    assert not envs.flush()["_vlm_rewards"].any()
    envs.close()


def test_task_rewards_are_added_in_float32_in_every_mode():
    """A weight of 0.1 and the own reward have no exact value: equal to the last bit whenever the sum is made."""
    found, bases = [], [Paid([7]) for _ in range(3)]
    options = {"reward": "reward_models:TwoFeatures", "task_reward_weight": 0.1}
    for base, scoring in zip(bases[:2], ("episode", "step"), strict=True):
        envs = vlmrm_gym.VLMRewardVectorEnv([lambda base=base: base], scoring=scoring, **options)
        envs.reset(seed=0)
        steps = [envs.step(np.zeros(1, dtype=int)) for _ in range(7)]
        found += [np.concatenate([step[4]["vlm_rewards"][0] for step in steps if step[4]["_vlm_rewards"][0]])]
        found += [np.array([step[1][0] for step in steps])] if scoring == "step" else []
        envs.close()
    env = vlmrm_gym.VLMReward(bases[2], **options)
    env.reset(seed=0)
    found.append(np.array([env.step(0)[1] for _ in range(7)]))
    numbers = np.arange(2, 9)
    expected = np.float32(2 * numbers + 1) + np.float32(0.1 * (numbers % 7))
    assert [own.astype(np.float64).tolist() for own in found] == [expected.astype(np.float64).tolist()] * 4


class Corners(TwoFeatures):
    """Features of two pixels of a frame."""

    render_size = fixed_size((24, 32))

    def encode(self, frames):
        return frames[:, [0, 12], [0, 16], 0].astype(np.float32)


def test_nothing_but_features_leaves_a_worker_and_frames_are_drawn_in_this_process(monkeypatch):
    """Of two views; the worker is stopped while the frames that it has encoded are drawn."""
    sent, read = [], RemoteScorer._read
    monkeypatch.setattr(RemoteScorer, "_read", lambda *args: sent.append(read(*args)) or sent[-1])
    log, earlier = EpisodeLog(2**20), children()
    options = {"num_workers": 1, "return_features": True, "camera": "front-side", "episode_log": log}
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", 1, episode_length=5, reward="test_delivery:Corners", **options)
    envs.reset(seed=0)
    for _ in range(5):
        infos = envs.step(envs.action_space.sample())[4]
    features = infos["vlm_features"][0]
    _, *answers = sent
    assert [type(answer) for answer in answers] == [np.ndarray] * len(answers)
    np.testing.assert_array_equal(np.concatenate(answers), features)
    (worker,) = children() - earlier
    os.kill(worker, signal.SIGSTOP)
    frames = envs.scorer.frames(log.episodes[0].states)
    assert frames.shape == (5, 2, 24, 32, 3)
    np.testing.assert_array_equal(frames[:, :, [0, 12], [0, 16], 0], features)
    np.testing.assert_allclose(infos["vlm_rewards"][0], (2 * features[..., 0] + features[..., 1]).min(1))
    envs.close()


def pend(*parts, **clip):
    """The states of one environment, in parts of so many steps, which end an episode or do not."""
    rules = {"max_bytes": 2**20, "chunk_size": 100, "score_every": 1, "clips": [ClipShape(**clip)]}
    books = EnvironmentBooks(0, BookRules(**rules, sees_first=False, ordered=False, keep_features=False, log=None))
    numbers = itertools.count()
    for count, ends in parts:
        for _ in range(count):
            books.append(np.array([float(next(numbers))]), None, 0.0, 0.0, 0.0)
        books.close_chunk()
        if ends:
            books.end_episode()
    return books


def test_rewards_that_are_held_are_said_over_the_parts_of_an_episode():
    """A part does not begin to count anew, an episode does: of 4 + 3 and 2 states, 0, 3, 6 and 0 are scored."""
    books = pend((4, False), (3, True), (2, True), every=3)
    exact = [chunk.exact.tolist() for chunk in books._waiting]
    assert exact == [[True, False, False, True], [False, False, True], [True, False]]
    assert [request.keys.tolist() for request in books.unsubmitted] == [[0, 1, 2, 3], [4, 5, 6], [7, 8]]
    held = [request.states.rows[request.states.clips, 0].tolist() for request in books.unsubmitted]
    assert held == [[0, 0, 0, 3], [3, 3, 6], [7, 7]]


def test_the_newest_episodes_are_not_waited_for():
    """Two with `overlap`: the one that has just ended and the next one; the one before those is waited for."""
    books = pend((4, True), (3, True), (2, False))
    first = books.unsubmitted[0]
    books.unsubmitted.clear()
    collecting = threading.Thread(target=books.collect, kwargs={"keep_newest": 2}, daemon=True)
    collecting.start()
    collecting.join(0.2)
    assert collecting.is_alive(), "the first episode is not scored yet"
    first.deliver(np.arange(4, dtype=np.float32)[:, None, None])
    collecting.join(5)
    assert not collecting.is_alive(), "the second is not waited for"
    scored = Scored(books.scored_episode())
    scored.pay(current_head.Paid(scored.concatenate("features")[:, 0, 0]))
    assert scored.rewards.tolist() == [0, 1, 2, 3]
    books.deliver(scored.chunks, scored.rewards, {}, 1)
    assert (books.scored_episode(), books.num_delivered) == ([], 4)
