"""The vector of humanoids on a thread pool is bitwise equal to Gymnasium's own vector environment."""

from copy import deepcopy

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from vlmrm_gym.infos import STATE_KEY
from vlmrm_gym.tasks.humanoid import Humanoid
from vlmrm_gym.tasks.humanoid_success import succeeds

pytest.importorskip("mujoco", minversion="4.0")  # its `mujoco.batch`

from vlmrm_gym.tasks.humanoid_vector import HumanoidVectorEnv

N = 3
ALL_BUT_FIRST = np.array([False, True, True])
LAST = np.array([False, False, True])


class Recorded(Humanoid):
    """Keeps the state after the last step, which a reset in the same step overwrites."""

    def step(self, action):
        result = super().step(action)
        self.led_to = self.data.qpos.copy()
        return result


def make_pair(mode=AutoresetMode.NEXT_STEP, *, num_envs=N, episode_length=20, **kwargs):
    kwargs = {"task": None, "textured": False, **kwargs}
    make = lambda: TimeLimit(Recorded(render_mode="rgb_array", **kwargs), episode_length)  # noqa: E731
    vector = {"episode_length": episode_length, "autoreset_mode": mode.value}
    return SyncVectorEnv([make] * num_envs, autoreset_mode=mode), HumanoidVectorEnv(num_envs, **vector, **kwargs)


def check_states(infos, expected, which):
    """Take the states out of the infos, and compare them."""
    states, mask = infos.pop(STATE_KEY, None), infos.pop(f"_{STATE_KEY}", None)
    if not which.any():
        assert states is mask is None
        return
    np.testing.assert_array_equal(mask, which)
    for state, qpos in zip(states[mask], np.asarray(expected)[mask], strict=True):
        assert state.dtype == np.float64
        np.testing.assert_array_equal(state, qpos)


def check_same(theirs, ours):
    """Types, keys, shapes, dtypes and every bit, the sign of a zero included."""
    assert type(theirs) is type(ours)
    if isinstance(theirs, dict):
        assert theirs.keys() == ours.keys()
        for key in theirs:
            check_same(theirs[key], ours[key])
    elif isinstance(theirs, tuple) or (isinstance(theirs, np.ndarray) and theirs.dtype == object):
        assert len(theirs) == len(ours)
        for their_part, our_part in zip(theirs, ours, strict=True):
            check_same(their_part, our_part)
    elif theirs is not None:
        assert theirs.dtype == ours.dtype
        np.testing.assert_array_equal(theirs, ours)
        assert theirs.tobytes() == ours.tobytes()


def check_step(reference, ours, actions, ended):
    """Step both; compare everything; return who has ended."""
    theirs, mine = reference.step(actions), ours.step(actions)
    expected = [env.unwrapped.led_to for env in reference.envs]
    over, infos, nobody = theirs[3], mine[4], np.zeros(len(ended), dtype=bool)
    same_step = ours.autoreset_mode == AutoresetMode.SAME_STEP
    check_states(infos, expected, ~over if same_step else ~ended)
    if same_step and over.any():
        check_states(infos["final_info"], expected, over)
    check_same(theirs, mine)
    return nobody if same_step else over


def actions_of(rng, num_envs=N):
    return rng.uniform(-0.4, 0.4, (num_envs, 17)).astype(np.float32)


def test_spaces_and_attributes_are_the_same():
    reference, ours = make_pair()
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(ours, name) == getattr(reference, name)
    assert ours.metadata == {**reference.metadata, STATE_KEY: True}
    for name in ("render_mode", "num_envs", "spec", "autoreset_mode"):
        assert getattr(ours, name) == getattr(reference, name)
    assert "autoreset_mode" not in HumanoidVectorEnv.metadata
    assert isinstance(ours.single_env, Humanoid)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_everything_is_bitwise_equal_over_autoresets(mode, rng):
    """Episodes end together at first, and out of step after a reset of some."""
    textured = mode == AutoresetMode.SAME_STEP
    near = 0.5 if textured else 0.0
    reference, ours = make_pair(mode, task="splits", textured=textured, start_near_goal=near)
    check_same(reference.reset(seed=5), ours.reset(seed=5))
    assert ours.np_random_seed == reference.np_random_seed == (5, 6, 7)
    ended = np.zeros(N, dtype=bool)
    for step in range(50):
        if step in (27, 33):
            mask = ALL_BUT_FIRST if step == 27 else LAST
            check_same(
                reference.reset(options={"reset_mask": mask.copy()}), ours.reset(options={"reset_mask": mask.copy()})
            )
            ended = ended & ~mask
        ended = check_step(reference, ours, actions_of(rng), ended)
    for theirs, mine in zip(reference.np_random, ours.np_random, strict=True):
        assert theirs.bit_generator.state == mine.bit_generator.state


def test_everything_is_bitwise_equal_without_autoresets(rng):
    reference, ours = make_pair(AutoresetMode.DISABLED)
    check_same(reference.reset(seed=[3, 1, 4]), ours.reset(seed=[3, 1, 4]))
    ended = np.zeros(N, dtype=bool)
    for step in range(30):
        mask = ended | (step == 7) * LAST
        if mask.any():
            seed = [None, 9, None] if step == 20 else None
            options = {"reset_mask": mask}
            check_same(reference.reset(seed=seed, options=dict(options)), ours.reset(seed=seed, options=options))
            assert list(options) == ["reset_mask"]  # the caller's; SyncVectorEnv takes it out
        ended = check_step(reference, ours, actions_of(rng), np.zeros(N, dtype=bool))


def test_contacts_and_success_of_falling_humanoids_are_bitwise_equal():
    """Without torques a humanoid lands on its feet, stands for a while, then falls."""
    reference, ours = make_pair(task="stand", episode_length=150)
    check_same(reference.reset(seed=0), ours.reset(seed=0))
    still, contact_costs, successes = np.zeros((N, 17), dtype=np.float32), [], []
    for _ in range(125):
        check_step(reference, ours, still, np.zeros(N, dtype=bool))
        contact_costs.append([env.unwrapped.contact_cost for env in reference.envs])
        successes.append(succeeds("stand", [env.unwrapped.led_to for env in reference.envs]))
    assert (np.array(contact_costs) > 0).any(axis=0).all()
    assert np.any(successes, axis=0).all()
    assert not np.any([successes[0], successes[-1]])


def test_results_do_not_depend_on_the_numbers_of_environments_and_threads(rng, monkeypatch):
    for num_envs, cores in ((1, 2), (5, 1), (5, 3)):
        monkeypatch.setattr("vlmrm_gym.tasks.humanoid_vector.usable_cores", lambda cores=cores: cores)
        reference, ours = make_pair(num_envs=num_envs, episode_length=4)
        check_same(reference.reset(seed=1), ours.reset(seed=1))
        ended = np.zeros(num_envs, dtype=bool)
        for _ in range(7):
            ended = check_step(reference, ours, actions_of(rng, num_envs), ended)


def test_random_numbers_continue_over_resets_and_differ_without_a_seed_and_arrays_are_not_overwritten(rng):
    reference, ours = make_pair()
    check_same(reference.reset(seed=8), ours.reset(seed=8))
    check_same(reference.reset(), ours.reset())
    others = [HumanoidVectorEnv(2, textured=False) for _ in range(2)]
    assert not np.array_equal(others[0].reset()[0], ours.reset()[0][:2])
    assert len(set(others[1].np_random_seed)) == 2
    first = ours.step(actions_of(rng))
    kept = deepcopy(first)
    ours.step(actions_of(rng))
    ours.reset()
    check_same(kept, first)


@pytest.mark.usefixtures("in_folder")  # MuJoCo writes its log there
def test_a_diverging_simulation_is_bitwise_equal_too(rng):
    reference, ours = make_pair()
    check_same(reference.reset(seed=0), ours.reset(seed=0))
    check_step(reference, ours, np.full((N, 17), np.nan), np.zeros(N, dtype=bool))
    for _ in range(5):
        check_step(reference, ours, 1e6 * actions_of(rng), np.zeros(N, dtype=bool))


def test_frames_are_those_of_the_states_and_rendering_does_not_affect_the_simulation(rng):
    """Whatever humanoids are drawn in between: Gymnasium draws in whichever OpenGL context is current."""
    reference, ours = make_pair(num_envs=2)
    other = make_pair(num_envs=1, textured=True)[1]
    for envs in (reference, ours, other):
        envs.reset(seed=0)
    frames, expected = ours.render(), reference.render()
    assert isinstance(frames, tuple)
    assert [(frame.shape, frame.dtype) for frame in frames] == [((480, 480, 3), np.dtype(np.uint8))] * 2
    np.testing.assert_array_equal(frames, expected)
    other.render()
    np.testing.assert_array_equal(ours.render(), expected)
    check_step(reference, ours, actions_of(rng, 2), np.zeros(2, dtype=bool))
    for envs in (reference, ours, other):
        envs.close()


def test_bad_calls():
    ours = make_pair(AutoresetMode.DISABLED, num_envs=2, episode_length=1)[1]
    for kwargs, error in (
        ({"episode_length": 0}, "`episode_length` must be an integer of at least 1. Received 0"),
        ({"autoreset_mode": "bogus"}, "`autoreset_mode` must be one of 'NextStep', 'SameStep', 'Disabled'"),
    ):
        with pytest.raises(ValueError, match=error):
            HumanoidVectorEnv(2, **kwargs)
    actions = np.zeros((2, 17), dtype=np.float32)
    with pytest.raises(ResetNeeded, match=r"`reset` must be called before `step` for environments \[0 1\]"):
        ours.step(actions)
    with pytest.raises(ValueError, match=r"`seed` must be an integer or a list of 2\. Received \[1\]"):
        ours.reset(seed=[1])
    ours.reset()
    with pytest.raises(ValueError, match=r"`actions` must be of shape \(2, 17\)\. Received shape \(17,\)"):
        ours.step(actions[0])
    ours.step(actions)
    ours.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"for environments \[1\]"):
        ours.step(actions)
    ours.close()
    ours.close()
