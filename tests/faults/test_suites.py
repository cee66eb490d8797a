"""Suites of MuJoCo environments: what is drawn from a state is what the environment itself shows, to the pixel.

requirements/suites.txt lists the packages; an environment whose package is missing, or does not fit the MuJoCo that is
installed, is skipped.
"""

import importlib
import json
from contextlib import closing

import gymnasium as gym
import mujoco
import numpy as np
import pytest

import vlmrm_gym
from vlmrm_gym.states import States, StateView
from vlmrm_gym.states.env_viewers import find_scene

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_collection"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::SyntaxWarning", "ignore::ResourceWarning"
    ),
]

SMALL = {"width": 64, "height": 64}
DRAWN = {
    "Meta-World/MT1 drawer-close-v3": "metaworld",
    "dm_control/cartpole-swingup-v0": "shimmy",
    "FetchReach-v4": "gymnasium_robotics",
    "HandReach-v3": "gymnasium_robotics",
    "PointMaze_UMaze-v3": "gymnasium_robotics",
    "AdroitHandDoor-v1": "gymnasium_robotics",
}
"""Environments that are drawn from their states: the package that has each."""
STORED = {"dm_control/quadruped-escape-v0": "shimmy"}
"""Those whose frames are stored: range finders are drawn, which measure distances."""


def make(env_id):
    package = {**DRAWN, **STORED}[env_id]
    module = pytest.importorskip(package, reason=f"{env_id} needs requirements/suites.txt", exc_type=ImportError)
    if package == "gymnasium_robotics":
        gym.register_envs(module)
    name, _, task = env_id.partition(" ")
    kwargs = {"env_name": task, "seed": 0} if task else {}  # Meta-World's tasks are drawn when it is made
    kwargs |= {"render_kwargs": {**SMALL, "camera_id": 0}} if package == "shimmy" else SMALL
    try:
        return gym.make(name, render_mode="rgb_array", **kwargs)
    except (AssertionError, AttributeError) as error:
        pytest.skip(f"{env_id} does not work beside MuJoCo {mujoco.__version__}: {error!r}")


def roll(env, view=None, episodes=2, steps=2):
    """Observations after steps, and the states that a view captures."""
    for seed in range(episodes):
        env.reset(seed=seed)
        env.action_space.seed(seed)
        if view is not None:
            view.reset()
        for _ in range(steps):
            observation = env.step(env.action_space.sample())[0]
            yield observation, None if view is None else view.capture()


def shown(env):
    """What the environment itself shows of its state: a step leaves positions of one substep before."""
    scene = find_scene(env)
    mujoco.mj_forward(scene.model, scene.data)
    return env.render()


def flat(observation):
    values = observation.values() if isinstance(observation, dict) else [observation]
    return np.concatenate([np.ravel(value) for value in values])


@pytest.mark.parametrize("env_id", DRAWN)
def test_states_give_the_environments_own_frames(env_id):
    """Contract 10, over a reset that moves objects: drawn later, in another order, with shadows and reflections.

    And 9: capturing changes no observation, to the bit.
    """
    plain, env = make(env_id), make(env_id)
    with closing(StateView(env, quality="faithful")) as view:
        renderer = view.make_renderer(lambda height, width: (height, width))
        frames, pairs = [], []
        for (expected, _), (observation, pair) in zip(roll(plain), roll(env, view), strict=True):
            np.testing.assert_array_equal(flat(observation), flat(expected))
            frames.append(shown(env))
            shown(plain)  # it moves what MuJoCo starts the next step from
            pairs.append(pair)
    rows, changes = zip(*reversed(pairs), strict=True)
    with closing(renderer):
        np.testing.assert_array_equal(States(np.stack(rows), changes).draw(renderer)[::-1], frames)
    assert all(change is None or change.frame is None for change in changes)
    assert (frames[1] != frames[3]).any()
    if env_id.startswith("Meta-World"):
        assert any("_pos" in name for change in changes for name in (change.fields if change else ()))
    plain.close(), env.close()


@pytest.mark.parametrize("env_id", STORED)
def test_what_states_do_not_determine_is_stored(env_id):
    env = make(env_id)
    with closing(StateView(env, quality="faithful")) as view:
        for _, (_, change) in roll(env, view):
            np.testing.assert_array_equal(change.frame, shown(env))
    env.close()


@pytest.mark.parametrize("env_id", ["Meta-World/MT1 drawer-close-v3", "FetchReach-v4"])
def test_a_worker_draws_what_is_drawn_here(env_id):
    """Contract 3, and 6: models and states cross to its process, no frames."""

    def rewards(num_workers):
        envs = vlmrm_gym.VLMRewardVectorEnv(
            [lambda: gym.wrappers.TimeLimit(make(env_id), 3)], reward=brightness, num_workers=num_workers
        )
        envs.reset(seed=0)
        envs.action_space.seed(0)
        *_, infos = [envs.step(envs.action_space.sample()) for _ in range(3)][-1]
        envs.close()
        return infos["vlm_rewards"][0]

    here = rewards(0)
    assert (here > 0).all()
    np.testing.assert_allclose(rewards(1), here, rtol=0, atol=1e-5)


def brightness(frames):
    return frames.mean((1, 2, 3)) / 255


@pytest.mark.parametrize(("reward", "steps"), [("videos", 5_000), ("place", 400), ("dense", 400)])
def test_the_example_learns_from_recordings_of_meta_world(reward, steps, tmp_path):
    """It leaves what it promises: recordings that end in success, a reward that orders them, a table, a policy."""
    pytest.importorskip("metaworld", reason="it needs requirements/suites.txt", exc_type=ImportError)
    example = importlib.import_module("metaworld_from_videos")
    small = {"videos": 3, "others": 2, "encoder": "tiny", "evaluate_every": steps // 2, "episodes": 1}
    example.main(example.Args(reward=reward, steps=steps, out=tmp_path, **small))
    folder = tmp_path / f"drawer-close-v3__{reward}__1"
    assert (folder / "evaluations.csv").read_text().splitlines()[0] == "step,episodes,success"
    assert (folder / "model.zip").exists()
    if reward == "videos":
        recordings = tmp_path / "drawer-close-v3__recordings__1"
        assert len(list((recordings / "videos").iterdir())) == 3
        assert len(list((recordings / "others").iterdir())) == 2
        figures = json.loads((recordings / "reward" / "fit.json").read_text())
        assert figures["measures"]["order"] > 0.8
        assert len(figures["videos"]["negatives"] + figures["videos"]["held_out_negatives"]) == 2
