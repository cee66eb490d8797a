"""Relabelling: every stored reward is the newest head's of its features, plus the weighted task reward."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relabelled import WEIGHT, Learning, PlainRun, SB3Run, paid, times
from reward_models import TwoFeatures
from sb3_helpers import on_policy
from stable_baselines3 import DQN, PPO

from vlmrm_gym.data import store
from vlmrm_gym.data.replay import ReplayBuffer
from vlmrm_gym.data.statistics import EpisodeStatistics
from vlmrm_gym.rewards.current_head import CurrentHead
from vlmrm_gym.sb3 import DeferredReplayBuffer, VLMVecEnv
from vlmrm_gym.sb3 import replay_buffer as sb3_replay_buffer


@pytest.fixture
def open_run():
    """Makes a run, which is closed when the test ends."""
    runs = []
    yield lambda make, *args, **options: runs.append(make(*args, **options)) or runs[-1]
    for run in runs:
        run.envs.close()


@pytest.fixture(params=[PlainRun, SB3Run])
def make(request, open_run):
    """Makes runs with each of the two buffers."""
    return partial(open_run, request.param)


def check_rewards(run, factors):
    """All stored rewards are of the same of these heads; features and task rewards are those of their transitions."""
    if not run.buffer._late.has_features:
        return
    counts, features, rewards = run.stored()
    np.testing.assert_array_equal(features[:, 0, 0], counts)
    expected = [factor * counts + 1 + WEIGHT * (counts % 7) for factor in factors]
    assert any(np.array_equal(rewards, one) for one in expected)


OPERATIONS = st.sampled_from(["step"] * 8 + ["flush", "reset", "follow", "callable", "replace", "save"])


def interleave(run, operations):
    """Whatever happens: what can be sampled is of one head, that of the last `relabel`."""
    of_buffer, seen = None, [2]
    for number, operation in enumerate(operations):
        if operation == "save":
            run.save_and_load()
            if of_buffer is not None:
                assert not run.buffer._late.has_features or not run.buffer._late.is_settled or not len(run.stored()[0])
                run.buffer.relabel(times(of_buffer))
        elif operation == "callable":
            of_buffer = number + 3
            run.buffer.relabel(times(of_buffer))
        elif operation in ("replace", "follow"):
            run.envs.head.replace(times(number + 3))
            seen.append(number + 3)
            if operation == "follow":
                of_buffer = number + 3
                run.buffer.relabel(run.envs.head)
        else:
            getattr(run, operation)()
        if operation in ("callable", "follow"):
            assert run.buffer._late.is_settled
        if run.buffer._late.is_settled:
            check_rewards(run, seen if of_buffer is None else [of_buffer])
    run.envs.head.replace(times(5))
    run.flush()
    run.step()
    run.buffer.relabel(run.envs.head)
    check_rewards(run, [5])
    run.step()
    assert run.buffer._late.is_settled
    check_rewards(run, [5])
    run.envs.close()


@pytest.mark.parametrize("kind", [PlainRun, SB3Run])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=3),
    scoring=st.sampled_from([{}, {"overlap": True}, {"scoring": "step"}]),
    capacity=st.integers(1, 30),
    mode=st.sampled_from([*AutoresetMode]),
    operations=st.lists(OPERATIONS, max_size=50),
)
def test_rewards_are_of_one_head_after_any_interleaving(
    kind, lengths, scoring, capacity, mode, operations, monkeypatch
):
    """Of steps, ends, resets, flushes, wrap-arounds, relabellings, saves (in pieces of a few rows) and loads."""
    monkeypatch.setattr(sb3_replay_buffer, "PIECE_BYTES", 32)
    interleave(kind(lengths, capacity, mode, **scoring), operations)


def test_a_file_says_that_there_was_a_head_also_before_the_first_reward(make):
    run = make([[4]], 100)
    run.step()
    run.buffer.relabel(times(7))
    run.save_and_load()
    run.step(), run.step(), run.step(), run.step()
    with pytest.raises(RuntimeError, match="Call `relabel`"):
        run.buffer.sample(1)


def test_without_a_first_head_nothing_is_sampled_until_the_first_relabel(make):
    for scoring in ({}, {"scoring": "step"}):
        run = make([[4], [4]], 100, reward=Learning(), **scoring)
        with pytest.raises(RuntimeError, match=r"`head` must have a first version: call head.replace"):
            run.buffer.relabel(run.envs.head)
        for _ in range(4):
            run.step()
        assert np.isnan(run.stored()[2]).all()
        with pytest.raises(RuntimeError, match=r"there was none yet.*Call `relabel`"):
            run.buffer.sample(1)
        run.envs.head.replace(times(3))
        run.buffer.relabel(run.envs.head)
        check_rewards(run, [3])
        run.buffer.sample(1)


def test_a_head_that_makes_no_rewards_changes_nothing(make):
    """The message says which version and which transitions; the old rewards stay, and so does the old head."""
    run = make([[4], [4]], 100)
    for _ in range(4):
        run.step()
    run.buffer.relabel(times(3))
    for version, (head, message) in enumerate(
        [
            (lambda features: features[:, 0], r"It returned float32 \(8, 2\)"),
            (lambda features: torch.log(features[:, 0, 0] - features[4, 0, 0]), "It returned nan for transition 0"),
            (lambda features: torch.arange(8) / (torch.arange(8) != 3), "It returned inf for transition 3, and 1 such"),
            (lambda features: features @ torch.zeros(7), "It raised RuntimeError"),
        ],
        start=2,
    ):
        with pytest.raises(ValueError, match=f"`head` must map features.* of this buffer. {message}"):
            run.buffer.relabel(head)
        with pytest.raises(ValueError, match=f"`head` version {version} must map features.* of this buffer. {message}"):
            run.envs.head.replace(head), run.buffer.relabel(run.envs.head)
        check_rewards(run, [3])
        run.buffer.sample(1)
    with pytest.raises(TypeError, match="`head` must be a callable"):
        run.buffer.relabel("mean")


def test_rewards_without_features_cannot_be_relabelled(open_run):
    """Stable-Baselines3's buffer does not know its environments: it says so at the first reward."""
    rule = "`relabel` needs the features that rewards are made of.*return_features=True"
    plain, scored, early = (open_run(kind, [[2]], 100, return_features=False) for kind in (PlainRun, SB3Run, SB3Run))
    scored.step(), scored.step()
    for run in (plain, scored):
        with pytest.raises(RuntimeError, match=rule):
            run.buffer.relabel(times(2))
    early.buffer.relabel(times(2))
    early.step()
    with pytest.raises(RuntimeError, match=rule):
        early.step()


def test_other_features_are_refused(make):
    """Of a file, and those that arrive."""

    class Wider(TwoFeatures):
        feature_size, fingerprint = 3, "three features"
        encode = lambda self, frames: np.pad(super().encode(frames), ((0, 0), (0, 1)))  # noqa: E731
        head = lambda self, features: features.sum((1, 2))  # noqa: E731

    run, others = make([[2]], 100), make([[2]], 100, reward=Wider())
    for one in (run, others):
        one.step(), one.step()
    rule = r"shape of those stored, \(1, 3\). Received \(1, 2\)|buffer, 'three features'. Received 'two features'"
    with pytest.raises(ValueError, match=rule):
        others.buffer.load_state_dict(run.buffer.state_dict())
    others.buffer = run.buffer
    rule = r"shape of those stored, \(1, 2\). Received \(1, 3\)|buffer, 'two features'. Received 'three features'"
    with pytest.raises(ValueError, match=rule):
        others.step(), others.step(), others.step()


def test_features_that_do_not_fit_into_memory_are_refused(open_run, monkeypatch):
    """Before anything is allocated: by the environments' `feature_shape`, or when the first features arrive."""
    rule = (
        r"`{}` is too high for the memory: 1,000,000 transitions with features of shape \(1, 2\) in {} take {} GB\. "
        r"0.003 GB are available. Pass {}a lower `{}`"
    )
    monkeypatch.setattr(store, "available_memory", lambda: 3_000_000)
    half = r'features_dtype="float16" \(0.004 GB\), or '
    with pytest.raises(ValueError, match=rule.format("capacity", "float32", "0.008", half, "capacity")):
        open_run(PlainRun, [[2]], 1_000_000)
    run = open_run(PlainRun, [[2]], 300_000)
    with pytest.raises(ValueError, match=rule.format("capacity", "float16", "0.004", "", "capacity")):
        ReplayBuffer(1_000_000, run.envs, features_dtype="float16")
    with pytest.raises(ValueError, match="`features_dtype` must be"):
        ReplayBuffer(10, run.envs, features_dtype="float64")
    run = open_run(SB3Run, [[2]], 1_000_000)
    run.step()
    with pytest.raises(ValueError, match=rule.format("buffer_size", "float32", "0.008", half, "buffer_size")):
        run.step()


def test_half_precision_keeps_features_in_half_of_the_memory(make):
    """A float16 has 11 bits: counts up to 2,048 are exact, and those above 65,504 are refused."""
    run = make([[4]], 100)
    space = run.envs.single_observation_space, run.envs.single_action_space
    run.buffer = (
        ReplayBuffer(100, run.envs, features_dtype="float16")
        if make.args[0] is PlainRun
        else DeferredReplayBuffer(100, *space, "cpu", 1, features_dtype="float16")
    )
    for _ in range(4):
        run.step()
    assert run.buffer._late.columns["features"].dtype == np.float16
    run.buffer.relabel(times(3))
    check_rewards(run, [3])
    run.envs.env.envs[0].unwrapped.count = 70_000
    for _ in range(3):
        run.step()
    with pytest.raises(ValueError, match=r"`vlm_features` of environment 0 must be finite in float16\. Received 7000"):
        run.step(), run.step()


def test_features_are_found_under_wrappers():
    """Wrappers of vector environments hide the attributes of what they wrap."""
    wrapped = EpisodeStatistics(paid([[2]], autoreset_mode="SameStep"))
    assert wrapped.head is wrapped.env.head
    wrapped.head = other = CurrentHead(times(2), "two features")
    assert wrapped.env.head is other
    buffer = ReplayBuffer(10, wrapped)
    assert buffer._late.columns["features"].shape == (10, 1, 2)
    buffer.relabel(times(3))
    vec = VLMVecEnv(wrapped)
    vec.reset()
    infos = [vec.step(np.zeros(1, dtype=int))[3][0] for _ in range(2)]
    assert infos[-1]["vlm_fingerprint"] == "two features"
    vec.close()


def test_a_state_of_the_plain_buffer_shares_its_memory(open_run):
    """So that a checkpoint needs no more memory than the buffer; and only the used part is written."""
    run = open_run(PlainRun, [[4], [4]], 50_000)
    for _ in range(4):
        run.step()
    state = run.buffer.state_dict()
    for name, column in run.buffer._columns.items():
        assert state[name].data_ptr() == column.data_ptr()
        assert state[name].untyped_storage().nbytes() == 8 * column[0].nbytes


@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")  # Stable-Baselines3, at time limits
def test_rollouts_have_the_rewards_of_the_head_at_delivery():
    """Of a rollout all of whose rewards are delivered with the newest head; without a first head nothing is learned."""
    envs = VLMVecEnv(paid([[50], [50]], autoreset_mode="SameStep", reward=Learning()))
    model = on_policy(PPO, envs, 8, gamma=0.5)
    with pytest.raises(RuntimeError, match="the reward has no head yet"):
        model.learn(16)
    for factor in (3, 4):
        envs.envs.head.replace(times(factor))
        model.learn(16)
        counts = model.rollout_buffer.observations.reshape(2, 8).T + 1
        rewards = model.rollout_buffer.rewards
        np.testing.assert_array_equal(rewards, factor * counts + 1 + WEIGHT * (counts % 7))
    envs.close()


def test_plain_buffers_are_refused_while_there_is_no_head():
    """They would learn from NaN, although every step is scored."""
    envs = VLMVecEnv(paid([[5], [5]], autoreset_mode="SameStep", reward=Learning(), scoring="step"))
    with pytest.raises(ValueError, match=r"NaN rewards .* the reward has its first head"):
        DQN("MlpPolicy", envs, device="cpu").learn(20)
    envs.envs.head.replace(times(2))
    DQN("MlpPolicy", envs, device="cpu").learn(20)
    envs.close()
