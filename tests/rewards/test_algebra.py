"""Sums, progress and success pay what NumPy works out of their parts, wherever and however they are scored."""

import copy
import json
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import Counting, take
from expressions import MODELS, evaluate, expressions, make_reward
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_models import PixelReward, TwoFeatures

import vlmrm_gym
from vlmrm_gym import CLIP, Progress, RewardModel, Success, Sum, TaskReward
from vlmrm_gym.learning import FitOptions
from vlmrm_gym.rewards import from_mapping, to_mapping

POLE = CLIP(prompt="pole vertically upright on top of the cart", model="tiny")
CARTPOLE = "VLMRM/CartPole-v1"


def make(bases, reward, **options):
    options = {"autoreset_mode": "SameStep", **options}
    return vlmrm_gym.VLMRewardVectorEnv([lambda base=base: base for base in bases], reward=reward, **options)


def numbers_of(base):
    """The numbers of each episode of an environment, from its first state on."""
    numbers, episodes = np.array(base.expected_rewards), np.array(base.episodes)
    for episode in np.unique(episodes):
        own = numbers[episodes == episode]
        yield [own[0] - 1, *own]


def expected(base, expression):
    return np.concatenate([evaluate(expression, numbers)[1:] for numbers in numbers_of(base)])


def play(envs, calls):
    """The rewards of each environment, in order, after calls of `step` and `flush`."""
    received = [[] for _ in range(envs.num_envs)]
    envs.reset(seed=0)
    for call in [*calls, "flush"]:
        if call == "step":
            take(received, envs.step(np.zeros(envs.num_envs, dtype=int))[4])
        else:
            take(received, envs.flush())
    return received


@settings(max_examples=80, deadline=None)
@given(
    expression=expressions,
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=2),
    calls=st.lists(st.sampled_from(["step"] * 6 + ["flush"]), min_size=1, max_size=25),
    options=st.sampled_from([{}, {"scoring": "step"}, {"overlap": True}, {"max_pending_bytes": 100}]),
    mode=st.sampled_from(["SameStep", "NextStep"]),
)
def test_expressions_pay_what_numpy_works_out_however_they_are_scored(expression, lengths, calls, options, mode):
    bases = [Counting(own, first=100 * i) for i, own in enumerate(lengths)]
    envs = make(bases, make_reward(expression), autoreset_mode=mode, **options)
    for base, received in zip(bases, play(envs, calls), strict=True):
        if base.expected_rewards:
            np.testing.assert_allclose(received, expected(base, expression), atol=1e-5)
    envs.close()


@settings(max_examples=25, deadline=None)
@given(expression=expressions, steps=st.integers(1, 12), start=st.integers(0, 12))
def test_single_environments_and_their_copies_pay_the_same(expression, steps, start):
    """A copy, also one through a pickle, goes on from where it was made."""
    env = vlmrm_gym.VLMReward(base := Counting([7, 4]), reward=make_reward(expression))
    env.reset()
    rewards = []
    for t in range(steps):
        if t == start:
            env = copy.deepcopy(env) if start % 2 else pickle.loads(pickle.dumps(env))
        _, reward, terminated, truncated, _ = env.step(0)
        rewards.append(reward)
        if terminated or truncated:
            env.reset()
    np.testing.assert_allclose(rewards, expected(env.unwrapped, expression), atol=1e-5)
    assert base is env.unwrapped or start < steps


@pytest.mark.parametrize("backend", [{}, {"num_workers": 2}])
def test_all_kinds_at_once_with_workers_and_without(backend):
    parts = [(0.5, ("progress", ("reward", name), 0.9)) for name in MODELS]
    parts += [(1.0, ("success", ("reward", "window"), 0.453, 2)), (2.0, ("reward", "prefix"))]
    expression = ("sum", parts, -0.25)
    bases = [Counting([6, 3], first=300 * i) for i in range(2)]
    envs = make(bases, make_reward(expression), **backend)
    received = play(envs, ["step"] * 4 + ["flush"] + ["step"] * 8)
    envs.close()
    for base, own in zip(bases, received, strict=True):
        np.testing.assert_allclose(own, expected(base, expression), atol=1e-5)


def test_score_every_interpolates_sums_and_is_refused_for_what_looks_back():
    envs = make([base := Counting([9])], Sum(terms=[(2.0, MODELS["shared"]()), (1.0, TwoFeatures())]), score_every=4)
    received = play(envs, ["step"] * 9)[0]
    exact = (
        2 * evaluate(("reward", "shared"), [1, *base.expected_rewards])[1:] + 2 * np.array(base.expected_rewards) + 1
    )
    np.testing.assert_allclose(received, np.interp(np.arange(9), [0, 4, 8], exact[[0, 4, 8]]), atol=1e-4)
    envs.close()
    for looks_back in (Progress(PixelReward()), Success(PixelReward(), threshold=1, hold=1)):
        with pytest.raises(ValueError, match="`score_every` is not for this reward: it looks at sequences of states"):
            make([Counting()], looks_back, score_every=2)


def test_of_several_views_each_reward_has_its_own_combination():
    """Views that are combined, and a model of all views at once: 2 features of each of 2 views, side by side."""
    joint = type("Joint", (TwoFeatures,), {"multi_view": True, "head": staticmethod(lambda f: f[:, :, 0].sum(1))})
    single = type("Single", (TwoFeatures,), {"head": staticmethod(lambda f: f[:, 0, 0] ** 2), "encoder_key": None})
    from vlmrm_gym.scoring.state_encoder import StateEncoder

    info = StateEncoder(Sum(terms=[(1.0, single()), (10.0, joint())]).build(), 2).info
    assert info.feature_shape == (1, 8)
    features = np.random.default_rng(0).random((5, 1, 8)).astype(np.float32)
    first, second = features.reshape(5, 2, 2, 2).swapaxes(0, 1)
    by_hand = (first[..., 0] ** 2).min(1) + 10 * second[..., 0].sum(1)
    np.testing.assert_allclose(info.make_head(None)(torch.from_numpy(features)), by_hand, rtol=1e-6)


def test_terms_and_success_are_reported_with_every_reward():
    reward = 0.5 * POLE - 2 * Success(POLE, threshold=0.5, hold=2) + TaskReward() + 0.25
    env = gym.make(CARTPOLE, reward=reward)
    env.reset(seed=3)
    single = [env.step(1)[1::3] for _ in range(5)]
    for paid, info in single:
        terms = info["vlm_terms"]
        assert terms.keys() == {"clip", "success", "task_reward"}
        assert terms["task_reward"] == info["task_reward"] == 1
        assert paid == pytest.approx(0.5 * terms["clip"] - 2 * terms["success"] + 1.25, abs=1e-5)
        assert info["vlm_success"] is (terms["success"] == 1)
    for scoring in ("episode", "step"):
        envs = gym.make_vec(CARTPOLE, 1, reward=reward, episode_length=5, scoring=scoring)
        envs.reset(seed=3)
        arrived = [late for _ in range(5) for late in vlmrm_gym.read_late(envs.step(np.ones(1, dtype=int))[4])]
        envs.close()
        for name in ("clip", "success", "task_reward"):
            every = np.concatenate([late.terms[name] for late in arrived])
            np.testing.assert_allclose(every, [info["vlm_terms"][name] for _, info in single], atol=1e-5)
        success = np.concatenate([late.success for late in arrived])
        assert success.dtype == bool
        assert success.tolist() == [info["vlm_success"] for _, info in single]
    env.close()


def test_a_sum_with_the_task_reward_is_short_for_its_weight():
    for reward, weight in ((POLE + 0.5 * TaskReward(), 0.0), (POLE, 0.5), (POLE + TaskReward(), -0.5)):
        env = gym.make(CARTPOLE, reward=reward, task_reward_weight=weight)
        env.reset(seed=0)
        assert env.step(0)[1] == pytest.approx(0.5 + gym_reward(POLE), abs=1e-5)
        env.close()


def gym_reward(reward):
    env = gym.make(CARTPOLE, reward=reward)
    env.reset(seed=0)
    return env.step(0)[1]


class Sized(RewardModel):
    """Remembers the sizes of the frames that it has encoded."""

    def __init__(self, size):
        self.size, self.seen = size, []

    def render_size(self, height, width):
        return self.size

    def encode(self, frames):
        self.seen.append(frames.shape)
        return frames.mean((1, 2, 3), dtype=np.float32)[:, None] / 255


def test_states_are_drawn_once_a_size_and_encoded_once_an_encoder(monkeypatch):
    from vlmrm_gym.states.classic_control import CartPoleRenderer

    drawn, encoded = [], []
    render = CartPoleRenderer.render
    monkeypatch.setattr(
        CartPoleRenderer, "render", lambda self, *args: drawn.append(self.height) or render(self, *args)
    )
    small, other, large = Sized((40, 60)), Sized((40, 60)), Sized((80, 120))
    reward = Sum(terms=[(1.0, small), (2.0, other), (3.0, large)]) + POLE + 2 * Progress(POLE)
    env = gym.make(CARTPOLE, reward=reward)
    env.reset(seed=0)
    from vlmrm_gym.rewards.encoder import FrameEncoder

    encode = FrameEncoder.encode
    monkeypatch.setattr(
        FrameEncoder, "encode", lambda self, frames: encoded.append(len(frames)) or encode(self, frames)
    )
    env.step(0)
    drawn.clear(), encoded.clear()
    env.step(0)
    assert sorted(drawn)[:2] == [40, 80]
    assert len(drawn) == 3  # and once for CLIP, at its size
    assert encoded == [1]
    assert {shape[1:3] for shape in small.seen + other.seen} == {(40, 60)}
    assert {shape[1:3] for shape in large.seen} == {(80, 120)}
    env.close()


def test_hovering_and_oscillating_earn_nothing():
    """Progress over a closed loop of scores sums to 0, without a discount; of the best, only the first rise is paid."""
    numbers = [5, 9, 5, 9, 9, 9, 5, 9, 5]
    for kind, total in ((("progress", ("reward", "shared"), 1.0), 0.0), (("best", ("reward", "shared")), None)):
        paid = make_reward(kind).build().head.pay(*scores_as_features(numbers))[0].numpy()
        rise = evaluate(("reward", "shared"), numbers)
        assert paid.sum() == pytest.approx(max(0, rise[1] - rise[0]) if total is None else total, abs=1e-6)
        assert (paid[3:5] == 0).all()


def scores_as_features(numbers):
    """Features of the states after the first, and the carry of that, for "shared"."""
    values = torch.tensor(evaluate(("reward", "shared"), numbers), dtype=torch.float32)[:, None, None]
    head = make_reward(("progress", ("reward", "shared"), 1.0)).build().head
    return values[1:], head.begin(values[:1])


@pytest.mark.parametrize("gamma", [0.9, 0.99])
def test_progress_with_the_learners_gamma_leaves_the_optimal_policy_as_it_is(gamma):
    """Potential-based shaping (Ng et al., 1999, theorem 1), by policy iteration on random MDPs; others change it."""
    changed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        transitions = rng.dirichlet(np.full(6, 0.3), (6, 3))  # (S, A, S')
        task, potential = rng.normal(size=(6, 3)), torch.from_numpy(3 * rng.normal(size=6)).float()

        def shaped(own_gamma, potential=potential):
            head = Progress(PixelReward(), gamma=own_gamma).build().head
            states = potential[:, None, None, None]
            paid = [head.pay(after, head.begin(before))[0] for before in states for after in states]
            return torch.cat(paid).reshape(6, 6).numpy()

        def optimal(extra, transitions=transitions, task=task):
            policy, better = None, np.zeros(6, dtype=int)
            rewards = task + (transitions * extra[:, None]).sum(2)
            while policy is None or (better != policy).any():
                policy = better
                chosen = np.arange(6), policy
                values = np.linalg.solve(np.eye(6) - gamma * transitions[chosen], rewards[chosen])
                better = (rewards + gamma * transitions @ values).argmax(1)
            return policy.tolist()

        assert optimal(shaped(gamma)) == optimal(np.zeros((6, 6)))
        changed += optimal(shaped(0.3)) != optimal(np.zeros((6, 6)))
    assert changed


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_success_ends_the_episode_as_if_the_environment_had(mode):
    """The step after is of a new episode; its observation, first state and infos are those of the reset."""
    reward = Success(PixelReward(), threshold=4, hold=2, terminate=True) + 0.001 * Progress(PixelReward())
    envs = make([Counting([50]), Counting([50], first=50)], reward, autoreset_mode=mode, scoring="step")
    envs.reset(seed=0)
    lengths, counts = [[], []], [0, 0]
    for _ in range(12):
        before = [env.unwrapped.episode for env in envs.unwrapped.envs]
        observations, rewards, terminations, truncations, infos = envs.step(np.zeros(2, dtype=int))
        assert not truncations.any()
        for i in range(2):
            if not infos["_vlm_step_index"][i]:
                assert (rewards[i], terminations[i]) == (0, False)
                continue
            counts[i] += 1
            assert rewards[i] == pytest.approx(float(terminations[i]) + 0.001, abs=1e-6)
            if terminations[i]:
                lengths[i].append(counts[i])
                counts[i] = 0
                has_reset = envs.unwrapped.envs[i].unwrapped.episode > before[i]
                assert has_reset is (mode == "SameStep")
                if mode == "SameStep":
                    assert infos["final_obs"][i] + 1 == observations[i]
        if mode == "Disabled" and terminations.any():
            envs.reset(options={"reset_mask": terminations})
    assert lengths == {"SameStep": [[4] + [2] * 4, [2] * 6], "NextStep": [[4, 2, 2], [2] * 4], "Disabled": None}[
        mode
    ] or (mode == "Disabled" and lengths == [[4] + [2] * 4, [2] * 6])
    envs.close()


def test_success_that_terminates_needs_rewards_at_once():
    reward = 0.5 * Success(POLE, threshold=0.5, terminate=True) + POLE
    with pytest.raises(ValueError, match=r"`terminate` of a success needs scoring=\"step\".*Received 'episode'"):
        gym.make_vec(CARTPOLE, 2, reward=reward)
    gym.make_vec(CARTPOLE, 2, reward=reward, scoring="step").close()
    env = gym.make(CARTPOLE, reward=Success(POLE, threshold=0.0, hold=3, terminate=True))
    env.reset(seed=0)
    assert [env.step(0)[2] for _ in range(3)] == [False, False, True]


class Fails(PixelReward):
    def encode(self, frames):
        raise ArithmeticError("no reply")


def test_a_term_that_fails_names_itself():
    def bad(features):
        return features[:, 0, 0] * float("nan")

    wrong = type("Wrong", (TwoFeatures,), {"head": staticmethod(bad)})
    for term, message in ((Fails(), "The term `Fails` of the reward failed: no reply"), (wrong(), "head of `Wrong`")):
        env = vlmrm_gym.VLMReward(Counting(), reward=Sum(terms=[(1.0, PixelReward()), (2.0, term)]))
        env.reset()
        with pytest.raises((ArithmeticError, ValueError), match=message):
            env.step(0)


EVERYTHING = (
    0.3 * CLIP(prompt="a pole", goal_images=[np.zeros((4, 4, 3), dtype=np.uint8)], alpha=0.5, baseline="a cart")
    + TaskReward()
    - Progress(Success(CLIP(prompt="up"), threshold=0.4, hold=3), gamma=0.9)
    + Success(
        Progress(vlmrm_gym.Endpoint(model="m", prompt="up", base_url="http://localhost:1"), best=True), threshold=1
    )
    + 2 * vlmrm_gym.rewards.ImportedReward(path="own_things:mean_pixel")
    - 0.1
)


def test_mapping_forms_copies_and_pickles_are_equal():
    values = to_mapping(EVERYTHING)
    assert {"weight": 1.0, "kind": "task_reward"} in values["terms"]
    for other in (
        from_mapping(json.loads(json.dumps(values))),
        copy.deepcopy(EVERYTHING),
        pickle.loads(pickle.dumps(EVERYTHING)),
    ):
        assert other == EVERYTHING
        assert to_mapping(other) == values
    spec = gym.make(CARTPOLE, reward=0.5 * POLE + Progress(POLE)).spec
    env = gym.make(gym.envs.registration.EnvSpec.from_json(spec.to_json()))
    env.reset(seed=0)
    assert env.step(0)[1] == pytest.approx(gym_reward(0.5 * POLE + Progress(POLE)))


def test_arithmetic_is_that_of_numbers():
    a, b = CLIP(prompt="a"), CLIP(prompt="b")
    assert 2 * (a + 3 * b - 1) == Sum(terms=[(2.0, a), (6.0, b)], constant=-2.0)
    assert 1 - a == Sum(terms=[(-1.0, a)], constant=1.0)
    assert sum([a, b]) == a + b
    assert -(a - b) == Sum(terms=[(-1.0, a), (1.0, b)])
    assert np.float64(0.5) * a == 0.5 * a
    assert repr(0.5 * a - 1) == "0.5 * CLIP(prompt='a') - 1.0"


@pytest.mark.parametrize("other", ["shared encoder", "another encoder"])
def test_a_preference_keeps_learning_inside_a_sum(other):
    """Rewards are NaN before the first head; then the sum of all terms, also of features that are relabelled."""
    fixed = POLE if other == "shared encoder" else Sum(terms=[(1.0, Sized((40, 60)))])
    reward = 0.5 * fixed + 2 * vlmrm_gym.Preference(prompt="an upright pole", model="tiny")
    envs = gym.make_vec(CARTPOLE, 2, reward=reward, episode_length=10)
    learner = vlmrm_gym.PreferenceLearner(envs, vlmrm_gym.GroundTruthLabeler(), fit=FitOptions(epochs=5), seed=0)
    envs.action_space.seed(0)
    envs.reset(seed=0)

    def play():
        return [late for _ in range(33) for late in vlmrm_gym.read_late(envs.step(envs.action_space.sample())[4])]

    assert np.isnan(np.concatenate([late.rewards for late in play()])).all()
    assert learner.run_round(25).verdict.accepted
    for late in play():
        name = "clip" if other == "shared encoder" else "Sized"
        np.testing.assert_allclose(late.rewards, 0.5 * late.terms[name] + 2 * late.terms["preference"], atol=1e-5)
        np.testing.assert_allclose(envs.head(late.features), late.rewards, atol=1e-5)
        own = learner.head(torch.from_numpy(np.ascontiguousarray(envs.head.part_features(late.features))))
        np.testing.assert_allclose(late.terms["preference"], own, atol=1e-5)
    envs.close()


class Count(vlmrm_gym.SequenceHead):
    """The number of a state in its episode."""

    def advance(self, features, carry):
        numbers = torch.arange(1, len(features) + 1) + (0 if carry is None else carry)
        return numbers.float(), numbers[-1]


def test_a_head_of_sequences_in_place_of_a_learned_part_begins_anew_with_each_episode():
    envs = gym.make_vec(
        CARTPOLE, 2, reward=POLE + vlmrm_gym.Preference(prompt="a pole", model="tiny"), episode_length=4
    )
    envs.head.replace(Count())
    envs.reset(seed=0)
    infos = [envs.step(np.zeros(2, dtype=int))[4] for _ in range(4)][-1]
    for late in vlmrm_gym.read_late(infos):
        np.testing.assert_array_equal(late.terms["preference"], [1, 2, 3, 4])
    envs.close()


def test_what_cannot_be_combined_is_said():
    for wrong, error, message in (
        (lambda: POLE + None, TypeError, "unsupported operand"),
        (lambda: POLE * POLE, TypeError, "unsupported operand"),
        (lambda: float("nan") * POLE, ValueError, r"`terms\[0\]: weight` must be a finite number, .* Received nan"),
        (lambda: Sum(terms=[]), ValueError, "`terms` must have at least one reward"),
        (lambda: Sum(terms=POLE), TypeError, "`terms` must be a list of weights and rewards"),
        (lambda: Sum(terms=[POLE]), TypeError, r"`terms\[0\]` must be \(weight, reward\)"),
        (lambda: Progress(TaskReward()), ValueError, "`reward` cannot have the environment's own reward in it"),
        (lambda: Success(POLE + TaskReward(), threshold=1), ValueError, "`reward` cannot have the environment's own"),
        (lambda: Progress(POLE, gamma=2), ValueError, "`gamma` must be a number from 0 to 1"),
        (lambda: Progress(POLE, gamma=0.9, best=True), ValueError, "`gamma` is for best=False"),
        (lambda: Progress(3), TypeError, "`reward` must be a specification"),
        (lambda: Success(POLE, threshold=float("nan")), ValueError, "`threshold` must be a finite number"),
        (lambda: Success(POLE, threshold=1, hold=0), ValueError, "`hold` must be an integer of at least 1"),
        (lambda: Success(POLE, threshold=1, terminate=1), ValueError, "`terminate` must be True or False"),
        (lambda: gym.make(CARTPOLE, reward=TaskReward()), ValueError, "must see states"),
        (lambda: gym.make(CARTPOLE, reward=3 * TaskReward()), ValueError, "must see states"),
        (lambda: from_mapping({"kind": "sum", "terms": [{"weight": 1, "kind": "clop"}]}), ValueError, "'clop'"),
        (
            lambda: make([Counting()], Sum(terms=[(1, Wide()), (1, PixelReward())])),
            ValueError,
            "`feature_size` of the reward `Wide`",
        ),
        (lambda: make([Counting()], Two() + Two(prompt="b")), ValueError, "at most one part that is yet to be learned"),
        (lambda: 10**400 * POLE, ValueError, "must be a finite number, of at most 1e30"),
        (lambda: 1e20 * (1e20 * POLE), ValueError, "must be a finite number, of at most 1e30"),
    ):
        with pytest.raises(error, match=message):
            wrong()


def test_workers_send_no_model_back():
    large = Sized((40, 60))
    large.network = np.zeros(10**6)
    model = (2 * Progress(large) + POLE).build()
    assert len(cloudpickle.dumps(model.expression)) < 10_000
    assert model.head.pay(torch.zeros(1, 1, 129), None)[2].keys() == {"term progress", "term clip"}


@dataclass(frozen=True, kw_only=True)
class Template(vlmrm_gym.RewardSpec):
    """A kind with an array, which `==` cannot compare."""

    goal: Any

    def build(self, device="auto"):
        return lambda frames: np.full(len(frames), self.goal.sum(), dtype=np.float32)


def test_parts_with_arrays_are_told_apart():
    env = vlmrm_gym.VLMReward(Counting(), reward=Template(goal=np.zeros(3)) + 2 * Template(goal=np.ones(3)))
    env.reset()
    assert env.step(0)[1] == 6


def test_every_part_has_to_fit_the_number_of_views():
    two = type("Two", (TwoFeatures,), {"num_views": 2, "multi_view": True, "head": staticmethod(lambda f: f[:, 0, 0])})
    for models in ((TwoFeatures(), two()), (two(), TwoFeatures())):
        with pytest.raises(ValueError, match="`head` must be of as many views as there are cameras, 1"):
            make([Counting()], Sum(terms=[(1.0, model) for model in models]))


class Counted(PixelReward):
    """Counts the states of an episode; fails where it is told to."""

    ordered = True

    def __init__(self, fails=()):
        super().__init__()
        self.fails = list(fails)

    def continue_episode(self, frames, memory):
        if self.fails and self.fails.pop():
            raise ArithmeticError("not now")
        count = memory or 0
        return np.arange(count, count + len(frames), dtype=np.float32)[:, None], count + len(frames)


def test_ordered_parts_go_on_where_they_were_when_another_has_failed():
    reward = Sum(terms=[(100.0, Counted()), (1.0, Counted(fails=[True, False, False]))])
    envs = make([Counting([12])], reward)
    envs.reset(seed=0)
    paid = []
    for step in range(12):
        for call in (lambda: envs.step(np.zeros(1, dtype=int))[4], envs.flush):
            try:
                infos = call()
            except ArithmeticError:
                infos = envs.flush()
            paid += [reward for late in vlmrm_gym.read_late(infos) for reward in late.rewards]
        assert len(paid) == step + 1
    assert paid == [101 * step for step in range(12)]
    envs.close()


def test_success_ends_only_environments_that_can_be_reset_alone():
    reward = Success(POLE, threshold=0.0, terminate=True)
    options = {"reward": reward, "scoring": "step", "autoreset_mode": "NextStep"}
    alike = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point", render_mode="rgb_array")
    with pytest.raises(ValueError, match="`terminate` of a success needs environments of which some can be reset"):
        vlmrm_gym.VLMRewardVectorEnv(alike, **options)
    alike.close()


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_infos_of_a_success_that_ends_are_those_of_other_ends(mode):
    """`task_reward` of the last step is said, `final_obs` of no other environment; a changing scene does no harm."""
    reward = Success(lambda frames: frames.mean((1, 2, 3)) - 300, threshold=-250, hold=2, terminate=True)
    makes = [lambda: gym.make("CartPole-v1", render_mode="rgb_array")] * 2
    envs = vlmrm_gym.VLMRewardVectorEnv(makes, reward=reward, scoring="step", autoreset_mode=mode)
    envs.reset(seed=0)
    for step in range(8):
        envs.unwrapped.envs[1].unwrapped.length = 0.5 + 0.01 * step
        _, _, terminations, _, infos = envs.step(np.zeros(2, dtype=int))
        for i in np.flatnonzero(infos["_vlm_step_index"]):
            assert infos["_task_reward"][i]
            assert infos["task_reward"][i] == 1
            if mode == "SameStep" and "final_obs" in infos:
                assert (infos["final_obs"][i] is not None) == terminations[i]
    envs.close()


def test_a_learned_part_under_progress_is_refused_with_a_replay_buffer():
    from stable_baselines3 import DQN

    from vlmrm_gym.sb3 import DeferredReplayBuffer, PreferenceCallback, make_vec_env

    envs = make_vec_env(CARTPOLE, 2, reward=Progress(Two()), episode_length=10)
    agent = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=20, device="cpu")
    with pytest.raises(ValueError, match="`reward` must look at single states to be learned with a replay buffer"):
        agent.learn(40, callback=PreferenceCallback("ground_truth", every=20, pairs=2, total=2))
    envs.close()


def test_a_combination_can_be_closed_while_it_draws():
    def other(frames):
        return frames.mean((1, 2, 3)) + 1

    for _ in range(3):
        envs = gym.make_vec("VLMRM/Humanoid-stand-v0", 1, textured=False, episode_length=40, overlap=True,
                            reward=Sum(terms=[(1.0, lambda frames: frames.mean((1, 2, 3))), (1.0, other)]))  # fmt: skip
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(envs.action_space.sample())
        envs.close()


@pytest.mark.filterwarnings("ignore:The bundled model does not know")
def test_a_wrapper_with_a_sum_or_arrays_of_pictures_has_a_spec_that_json_holds():
    for options in ({"reward": 0.5 * POLE + 2}, {"goal_images": [np.zeros((4, 4, 3), dtype=np.uint8)]}):
        env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), **options)
        env.reset(seed=0)
        again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
        again.reset(seed=0)
        assert again.step(0)[1] == env.step(0)[1]


def Two(prompt="a"):
    return vlmrm_gym.Preference(prompt=prompt, model="tiny")


class Wide(PixelReward):
    def head(self, features):
        return features[:, 0].sum(1)
