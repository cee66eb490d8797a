"""Doors for vector environments: when they reset is said and kept to, and what they return is read in any form."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import Counting
from counting_vector import DISABLED, NEXT_STEP, SAME_STEP, CountingVector
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorWrapper

import vlmrm_gym
from vlmrm_gym import CaptureState
from vlmrm_gym.data.replay import ReplayBuffer
from vlmrm_gym.data.statistics import EpisodeStatistics, play_episodes
from vlmrm_gym.sb3 import VLMVecEnv

PIXEL = "reward_models:PixelReward"


def scored(envs, **options):
    return vlmrm_gym.VLMRewardVectorEnv(envs, reward=PIXEL, **options)


def zeros(envs):
    return np.zeros(envs.num_envs, dtype=int)


def rewards_of(envs, steps):
    """The rewards of the first environment, in the order in which they arrive."""
    envs.reset(seed=0)
    found = []
    for _ in range(steps):
        infos = envs.step(zeros(envs))[4]
        found += [] if infos["vlm_rewards"][0] is None else infos["vlm_rewards"][0].tolist()
    envs.close()
    return found


DOORS = {
    "VLMRewardVectorEnv": scored,
    "VLMVecEnv": VLMVecEnv,
    "ReplayBuffer": lambda envs, **mode: ReplayBuffer(10, envs, **mode),
    "EpisodeStatistics": EpisodeStatistics,
    "play_episodes": lambda envs, **mode: play_episodes(envs, lambda _: zeros(envs), seed=0, **mode),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_vector_must_say_when_it_resets(door):
    """Contract 1: it would be paid 1 2 3 4 0 and 2 3 4 0 for two episodes of 1 2 3 4 5, if the guess were wrong.

    Every door takes the mode as an enum or its value, in metadata or as a keyword.
    """
    with pytest.raises(ValueError, match=r"`envs?` must say when it resets: .* no `autoreset_mode`. Received Counting"):
        door(CountingVector(resets=SAME_STEP))
    mode = SAME_STEP if door is VLMVecEnv else NEXT_STEP
    for form in (mode, mode.value):
        door(CountingVector(declares=form, resets=mode))
        door(CountingVector(resets=mode), autoreset_mode=form)


def test_modes_that_are_unknown_or_contradict_each_other_are_refused_and_others_are_paid_right():
    for declared, options, words in (
        ("same_step", {}, r"`metadata\[\"autoreset_mode\"\]` must be one of 'NextStep', .* Received 'same_step'"),
        ("NextStep", {"autoreset_mode": "SameStep"}, "`autoreset_mode` cannot change .*'SameStep', but .* 'NextStep'"),
    ):
        with pytest.raises(ValueError, match=words):
            scored(CountingVector(declares=declared), **options)
    envs = scored(CountingVector(), autoreset_mode="NextStep")
    assert envs.metadata["autoreset_mode"] is NEXT_STEP
    assert rewards_of(envs, 12) == [1, 2, 3, 4, 5] * 2


CONTRADICTIONS = {
    "final_obs": ({"declares": NEXT_STEP, "says": ["final_obs"]}, 4, "infos with `final_obs`"),
    "final_info": ({"declares": "Disabled", "says": ["final_info"]}, 4, "infos with `final_info`"),
    "as of 0.29": ({"declares": NEXT_STEP, "says": ["final_observation"]}, 4, "infos with `final_observation`"),
    "an end": ({"length": 1, "declares": NEXT_STEP, "says": ()}, 1, r"an end of environments \[0\] in a step that"),
}


@pytest.mark.parametrize(("says", "steps", "received"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_an_environment_that_resets_at_once_is_not_taken_for_another(says, steps, received):
    """Contract 1: last observations, and an end in the step that only resets, contradict other modes than same-step."""
    envs = scored(CountingVector(resets=SAME_STEP, **says))
    envs.reset(seed=0)
    for _ in range(steps):
        envs.step(zeros(envs))
    with pytest.raises(ValueError, match=rf"`env` must reset its environments when its .* Received {received}"):
        envs.step(zeros(envs))


def test_masks_say_whether_a_last_observation_is_there():
    """An entry whose mask is false everywhere contradicts nothing."""

    class Empty(CountingVector):
        def step(self, actions):
            *results, infos = super().step(actions)
            nothing = np.full(self.num_envs, None, dtype=object)
            return *results, {**infos, "final_obs": nothing, "_final_obs": np.full(self.num_envs, False)}

    assert rewards_of(scored(Empty(declares="NextStep")), 12) == [1, 2, 3, 4, 5] * 2


def test_an_ended_environment_that_nothing_resets_is_not_stepped():
    """Disabled: the steps after an end are of no episode."""
    envs = scored(CountingVector(resets=DISABLED, declares="Disabled"))
    envs.reset(seed=0)
    for _ in range(5):
        infos = envs.step(zeros(envs))[4]
    assert infos["vlm_rewards"][0].tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(ResetNeeded, match=r"Environments \[0\] have ended, and do not reset themselves"):
        envs.step(zeros(envs))
    envs.reset()
    assert np.isnan(envs.step(zeros(envs))[1]).all()


@pytest.mark.parametrize(
    ("door", "said"),
    [
        ("VLMVecEnv", {}),
        ("EpisodeStatistics", {"final_obs": np.full(2, None)}),
        ("ReplayBuffer", {"final_obs": {"count": np.zeros(2)}}),
    ],
    ids=["no", "None", "dict"],
)
def test_an_end_under_same_step_needs_a_last_observation(door, said):
    class Says(CountingVector):
        """Has the infos that a `VLMVecEnv` and a buffer need, and what is said."""

        def step(self, actions):
            observations, rewards, *ends, infos = super().step(actions)
            own = {"vlm_step_index": np.zeros(2, dtype=int), "_vlm_step_index": np.full(2, True)}
            return observations, rewards, *ends, {**infos, **own, **said}

    envs = Says(2, length=1, resets=SAME_STEP, declares=SAME_STEP, says=["final_info"])
    observations, _ = envs.reset()
    wrapped = DOORS[door](envs)
    add = lambda: wrapped.add(observations, zeros(envs), *envs.step(zeros(envs)))  # noqa: E731
    step = add if door == "ReplayBuffer" else lambda: wrapped.step(zeros(envs))
    missing = r"`infos\[\"final_obs\"\]` must have the last observation of environment 0, whose episode has ended: its"
    with pytest.raises(ValueError, match=missing):
        step()


FORMS = {
    "int64": lambda values: values.astype(np.int64) if values.dtype == bool else values.astype(np.float32),
    "objects": lambda values: values.astype(object) if values.dtype == bool else values,
    "lists": lambda values: values.tolist(),
    "bfloat16 with a gradient": lambda values: torch.tensor(values, dtype=torch.bfloat16, requires_grad=True),
    "columns": lambda values: values[:, None],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_flags_and_rewards_of_any_form_are_read_alike(form):
    """Two environments with episodes of 3, 12 steps: 9 transitions of each, 18 stored; each reset is none."""
    envs = scored(CountingVector(2, length=3, declares="NextStep", convert=form))
    buffer = ReplayBuffer(100, envs)
    observations, _ = envs.reset(seed=0)
    task_rewards = []
    for _ in range(12):
        results = envs.step(zeros(envs))
        buffer.add(observations, zeros(envs), results[0], *map(form, results[1:4]), results[4])
        observations = results[0]
        assert [array.dtype.name for array in results[1:4]] == ["float64", "bool", "bool"]
        assert [array.shape for array in results[1:4]] == [(2,)] * 3
        task_rewards.append(results[4]["task_reward"][1])
    assert task_rewards == [0.5, 1, 1.5, 0] * 3
    assert (len(buffer), buffer.num_pending) == (18, 0)
    assert sorted(buffer._columns["rewards"][:18].tolist()) == [1] * 6 + [2] * 6 + [3] * 6


def test_flags_and_rewards_of_other_values_or_shapes_are_refused():
    for flags, rewards, message in (
        (np.array([2, 3]), 0, r"`terminations` of .* must be true or false, or 0 and 1. Received"),
        (np.full(2, None), 0, r"`terminations` of .* must be true or false"),
        (np.array([True]), 0, r"`terminations` of .* one element for each of 2 environments. .* shape \(1,\)"),
        (None, 0, r"`terminations` of .* one element for each of 2 .*Received None, of shape \(\)"),
        (0, None, "`rewards` of Counting.* must have one element"),
        (0, np.zeros((2, 2)), "`rewards` of Counting.* must have one element"),
        (0, ["a", "b"], "`rewards` of Counting.* must be numbers"),
        (0, [None, 1.0], "`rewards` of Counting.* must be numbers"),
    ):

        def convert(own, flags=flags, rewards=rewards):
            returned = flags if own.dtype == bool else rewards
            return own if isinstance(returned, int) else returned

        envs = scored(CountingVector(2, declares="NextStep", convert=convert))
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=message):
            envs.step(zeros(envs))


def test_a_step_that_only_resets_pays_nothing():
    """Also where the environment returns something: it is no reward of an action."""

    class PaysResets(CountingVector):
        def step(self, actions):
            observations, rewards, *results = super().step(actions)
            return observations, np.where(self.count == 0, np.nan, rewards), *results

    envs = scored(PaysResets(length=2, declares="NextStep"), task_reward_weight=1.0, scoring="step")
    envs.reset(seed=0)
    results = [envs.step(zeros(envs)) for _ in range(6)]
    assert [rewards.item() for _, rewards, *_ in results] == [1.5, 3.0, 0.0] * 2
    assert [infos["task_reward"].item() for *_, infos in results] == [0.5, 1.0, 0.0] * 2


def test_a_mask_of_environments_to_reset_is_read_in_any_form():
    """Only those environments begin another episode: 0 and 1 are no indices."""

    class ResetsSome(VectorWrapper):
        def reset(self, *, seed=None, options=None):
            options = options and {"reset_mask": np.asarray(options["reset_mask"], dtype=bool)}
            return self.env.reset(seed=seed, options=options)

    envs = scored(ResetsSome(SyncVectorEnv([lambda: Counting([9])] * 2, autoreset_mode=DISABLED)))
    envs.reset(seed=0)
    for mask in ([1, 0], np.array([1, 0], dtype=np.uint8), np.array([True, False])):
        envs.step(zeros(envs))
        infos = envs.reset(options={"reset_mask": mask})[1]
        assert infos["_vlm_rewards"].tolist() == [True, False]
    envs.close()


def test_infos_that_are_no_dict_are_refused():
    envs = scored(gym.wrappers.vector.DictInfoToList(SyncVectorEnv([Counting] * 2)))
    with pytest.raises(TypeError, match=r"`env` must return infos as a dict. Received list"):
        envs.reset(seed=0)
    envs.close()


class Reusing(Counting):
    """Returns the same array at every step, and counts the steps of each episode from 1,000 times its number."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 1_000 * self.episode
        self.array = np.array([self.count], dtype=np.float64) if self.episode == 0 else self.array
        self.array[:] = self.count
        return self.array, {}

    def step(self, action):
        _, *results = super().step(action)
        self.array[:] = self.count
        return self.array, *results


def test_the_last_observation_of_an_environment_that_reuses_its_array():
    """3, and not 1,000, which the reset writes into the same array."""
    envs = scored([lambda: Reusing([3])], autoreset_mode="SameStep")
    buffer = ReplayBuffer(10, envs)
    observations, _ = envs.reset(seed=0)
    for _ in range(6):
        results = envs.step(zeros(envs))
        buffer.add(observations, zeros(envs), *results)
        observations = results[0]
    assert buffer._columns["next_observations"][:6, 0].tolist() == [1, 2, 3, 1001, 1002, 1003]
    assert buffer._columns["observations"][:6, 0].tolist() == [0, 1, 2, 1000, 1001, 1002]
    envs.close()

    envs = VLMVecEnv(scored([lambda: Reusing([3])], autoreset_mode="SameStep"))
    envs.reset()
    seen = [envs.step(zeros(envs))[3][0].get("terminal_observation") for _ in range(6)]
    assert [None if own is None else own.tolist() for own in seen] == [None, None, [3], None, None, [1003]]
    envs.close()


def test_observations_of_a_vector_that_reuses_its_array_are_copies():
    envs = scored(CountingVector(declares="NextStep"))
    observations, steps = envs.reset(seed=0)[0], [envs.step(zeros(envs)) for _ in range(4)]
    assert [own.item() for own in (observations, *(step[0] for step in steps))] == [0, 1, 2, 3, 4]
    assert [step[4]["task_reward"].item() for step in steps] == [0.5, 1.0, 1.5, 2.0]


class DropsMetadata(VectorWrapper):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012


def test_a_wrapper_that_drops_metadata_drops_no_mode_and_no_captured_states():
    """Same-step frames of processes could not be had otherwise."""
    for mode, steps in ((NEXT_STEP, 12), (SAME_STEP, 10)):
        envs = scored(DropsMetadata(SyncVectorEnv([lambda: Counting([5])], autoreset_mode=mode)))
        assert envs.metadata["autoreset_mode"] is mode
        assert rewards_of(envs, steps) == [2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    for door in ("VLMVecEnv", "ReplayBuffer", "EpisodeStatistics"):
        DOORS[door](DropsMetadata(scored([Counting], autoreset_mode="SameStep")))
    base = AsyncVectorEnv([lambda: CaptureState(Counting([3]))], autoreset_mode=SAME_STEP)
    assert rewards_of(scored(DropsMetadata(base)), 6) == [2, 3, 4, 6, 7, 8]
