"""Environments that change what is drawn: the frame that is scored is the frame of that state."""

import copy
import functools
import pickle
from contextlib import closing

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from changing_env import CHANGES, ChangingEnv, make
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import vlmrm_gym
from vlmrm_gym.states import CaptureState, States, StateView
from vlmrm_gym.states.cameras import from_fields
from vlmrm_gym.states.mujoco import MuJoCoRenderer
from vlmrm_gym.states.watch import ModelWatch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PUSH = np.array([0.5])


def brightness(frames):
    """A reward that differs between scenes, from 0 to 1."""
    return frames[:, 12:-12, 12:-12].mean((1, 2, 3)) / 255


def fresh_frame(env, size=48):
    """What a new renderer, with everything uploaded anew, shows of the environment as it is now."""
    model, data = env.unwrapped.model, env.unwrapped.data
    own = env.unwrapped.mujoco_renderer
    view = StateView(env, quality="faithful")
    camera = own.camera_id if own.camera_id != -1 else from_fields(view._renderer.cameras[0])
    with mujoco.Renderer(model, size, size) as renderer:
        renderer.update_scene(data, camera)
        return renderer.render()


@pytest.mark.parametrize(
    ("camera", "resets", "unseen"),
    [
        (None, True, {"camera moved", "camera zoomed"}),
        pytest.param("watcher", False, {"free camera zoomed"}, marks=pytest.mark.slow),
    ],
)
def test_states_are_drawn_as_the_scene_was_when_they_were_captured(camera, resets, unseen, rng):
    """Each change on top of those before it, at resets or steps; in any order, later, and in another process."""
    env = ChangingEnv(camera=camera)
    env.reset(seed=0)
    scene = StateView(env, quality="faithful")
    captured, expected, seen = [scene.capture()], [fresh_frame(env)], set()
    assert captured[0][1] is None
    for name, change in CHANGES.items():
        change(env.model, 0.6)
        env.step(np.array([0.7]))
        env.set_state(env.init_qpos, env.init_qvel)
        if resets:
            scene.reset()
        captured.append(scene.capture())
        expected.append(fresh_frame(env))
        if not np.array_equal(*expected[-2:]):
            seen.add(name)
    assert seen == CHANGES.keys() - unseen
    renderer = scene.make_renderer(lambda height, width: (height, width))
    order = rng.permutation(len(captured))
    states = States(np.stack([captured[i][0] for i in order]), [captured[i][1] for i in order])
    states, elsewhere = pickle.loads(pickle.dumps((states, renderer)))
    np.testing.assert_array_equal(states.draw(elsewhere), np.stack(expected)[order])
    np.testing.assert_array_equal(scene.render(), expected[-1])
    elsewhere.close()
    scene.close()


def test_states_share_what_stays_the_same():
    """A texture that is new at a reset is held, and pickled, once for all states of the episode."""
    env, changes = ChangingEnv("texture"), []
    scene = StateView(env)
    env.reset(seed=0)
    for _ in range(50):
        env.step(PUSH)
        changes.append(scene.capture()[1])
        env.unwrapped.model.light_pos[0, 0] += 0.1
    assert len({id(change.fields["tex_data"]) for change in changes}) == 1
    states = States(np.zeros((50, 1)), changes)
    texture = changes[0].fields["tex_data"].nbytes
    assert texture < states.nbytes < 1.5 * texture
    assert len(pickle.dumps(states)) < 1.5 * texture


def test_a_texture_change_in_all_but_the_border_is_detected():
    """A sample at regular distances can lie in one column of the pixels."""
    xml = """<mujoco><asset><texture name="t" type="2d" builtin="flat" width="256" height="256"/></asset></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    watch = ModelWatch(model, copy.copy(model))
    assert watch.change(after_reset=True) is None
    model.tex_data.reshape(256, 256, 3)[8:-8, 8:-8] = 255
    assert list(watch.change(after_reset=False).fields) == ["tex_data"]


def test_every_field_that_is_drawn_is_watched():
    """Whatever its place in memory: of each field one element is changed, and put back."""
    env = ChangingEnv()
    model = env.model
    watch = ModelWatch(model, copy.copy(model))
    fields = [name for name in dir(model) if name.split("_")[0] in ("body", "geom", "site", "cam", "light", "mat")]
    fields = [name for name in fields if isinstance(getattr(model, name), np.ndarray) and getattr(model, name).size]
    assert len(fields) > 60
    for name in fields:
        array = getattr(model, name).reshape(-1)
        before = array[-1].copy()
        array[-1] = not before if array.dtype == bool else before + 1
        assert set(watch.change(after_reset=False).fields) == {name}
        array[-1] = before
        assert watch.change(after_reset=False) is None
    for structure, name in ((model.vis.map, "zfar"), (model.vis.rgba, "fog"), (model.stat, "extent")):
        value = copy.copy(getattr(structure, name))
        setattr(structure, name, value + 1)
        assert [field.split(".")[-1] for field in watch.change(after_reset=False).fields] == [name]
        setattr(structure, name, value)


def test_a_cart_pole_with_another_appearance_is_captured_as_frames():
    for change in ("length", "x_threshold"):
        env = gym.make("CartPole-v1", render_mode="rgb_array")
        env.reset(seed=0)
        scene = StateView(env)
        renderer = scene.make_renderer(lambda height, width: (height, width))
        assert scene.capture()[1] is None
        setattr(env.unwrapped, change, 1.5)
        state, changed = scene.capture()
        np.testing.assert_array_equal(States(state[None], [changed]).draw(renderer)[0], env.render())
        np.testing.assert_array_equal(scene.render(), env.render())


def test_frames_of_environments_that_show_forces_or_islands_of_constraints_are_stored():
    """What a state does not determine is not drawn from it; MuJoCo shows islands as long as there are any."""
    island = getattr(mujoco.mjtEnableBit, "mjENBL_ISLAND", None)  # older MuJoCo shows them by default
    shows_force = {mujoco.mjtVisFlag.mjVIS_CONTACTFORCE: True}
    for flags, enabled in (({}, 0), (shows_force, 0), *([({}, island)] if island else [])):
        env = gym.make("Ant-v5", render_mode="rgb_array", visual_options=flags, width=48, height=48)
        env.unwrapped.model.opt.enableflags |= enabled
        env.reset(seed=0)
        with closing(StateView(env)) as view:
            for _ in range(30):
                env.step(np.zeros(8))
            assert env.unwrapped.data.nisland or not enabled
            change = view.capture()[1]
            if flags or enabled:
                np.testing.assert_array_equal(change.frame, env.render())
            else:
                assert change is None


def expected_rewards(seed, **kwargs):
    """Of one episode: every state drawn by a new renderer, from a copy of the model as it is then."""
    env = make(**kwargs)
    camera = from_fields(StateView(env)._renderer.cameras[0])
    env.reset(seed=seed)
    rewards, done = [], False
    while not done:
        *_, done, _ = env.step(PUSH)
        renderer = MuJoCoRenderer(env.unwrapped.model, 48, 48, camera=camera)
        rewards.append(brightness(renderer.render(renderer.capture(env)[None]))[0])
        renderer.close()
    return np.array(rewards)


SCENES = [
    {"change": "body moved"},
    {"change": "light moved", "when": "step"},
    {"change": "texture"},
    {},
    {"extra": '<geom type="sphere" size=".3" pos="0 0 .5" rgba="0 1 1 1"/>'},
    {"camera": "watcher"},
]
"""Different sizes and colours, different bodies, different cameras, of which some change: scored by one vector."""


@pytest.fixture(scope="module")
def expected():
    """The rewards of each of `SCENES`."""
    return [expected_rewards(seed=i, **scene) for i, scene in enumerate(SCENES)]


def test_rewards_of_single_environments_are_those_of_the_scene_as_it_was(expected):
    for i, scene in enumerate(SCENES):
        env = vlmrm_gym.VLMReward(make(**scene), reward=brightness)
        env.reset(seed=i)
        np.testing.assert_allclose([env.step(PUSH)[1] for _ in range(4)], expected[i], atol=1e-5)
        env.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", pytest.param("async", marks=pytest.mark.slow)])
def test_rewards_of_vectors_are_those_of_the_scene_as_it_was(mode, expected):
    """In this process, and in processes of their own with scoring in workers."""
    makers = [functools.partial(make, **scene) for scene in SCENES]
    if mode == "async":
        inner = AsyncVectorEnv([functools.partial(capturing, maker) for maker in makers], context="spawn")
        envs = vlmrm_gym.VLMRewardVectorEnv(inner, reward=brightness, num_workers=1)
    else:
        envs = vlmrm_gym.VLMRewardVectorEnv(makers, reward=brightness, autoreset_mode=mode)
    envs.reset(seed=0)
    for _ in range(4):
        *_, infos = envs.step(np.full((len(SCENES), 1), 0.5))
    for scored, own in zip(infos["vlm_rewards"], expected, strict=True):
        np.testing.assert_allclose(scored, own, atol=1e-5)
    assert "vlm_scene_update" not in infos
    assert "vlm_scene_update" not in infos.get("final_info", {})
    assert np.ptp([rewards[0] for rewards in expected[3:]]) > 1e-3
    envs.close()


def capturing(maker):
    return CaptureState(maker())


class Blinking(gym.Wrapper):
    """Its box has another colour after every other step."""

    def step(self, action):
        self.unwrapped.model.geom_rgba[2, 0] = 0.8 if self.unwrapped.model.geom_rgba[2, 0] < 0.5 else 0.1
        return self.env.step(action)


def test_a_missing_scene_update_is_an_error():
    """An inner step puts the scene back to what it was at first, and its infos do not reach the outer environment."""
    inner = SyncVectorEnv([lambda: Blinking(make(episode_length=10))])
    envs = vlmrm_gym.VLMRewardVectorEnv(inner, reward=brightness)
    envs.reset(seed=0)
    envs.step(PUSH[None])  # another colour
    inner.step(PUSH[None])  # and back, unseen
    with pytest.raises(RuntimeError, match="changed its scene in a step whose infos did not arrive"):
        envs.step(PUSH[None])
    envs.close()


class TwoSteps(gym.Wrapper):
    def step(self, action):
        self.env.step(action)
        return self.env.step(action)


def test_a_frame_skip_around_the_capture_is_an_error_in_its_first_step():
    """Also where no other change follows in the episode."""
    inner = AsyncVectorEnv([lambda: TwoSteps(CaptureState(Blinking(make(episode_length=10))))])
    envs = vlmrm_gym.VLMRewardVectorEnv(inner, reward=brightness)
    envs.reset(seed=0)
    with pytest.raises(RuntimeError, match="changed its scene in a step whose infos did not arrive"):
        envs.step(PUSH[None])
    envs.close()


def test_options_that_change_before_there_is_a_renderer_are_captured():
    env = CaptureState(make())
    env.unwrapped.mujoco_renderer.max_geom = 3
    env.make_renderer(lambda height, width: (height, width))
    env.reset(seed=0)
    assert "frame" in env.step(PUSH)[4]["vlm_scene_update"].values
    env.close()


def test_pending_changes_count_as_memory():
    """An episode with a new texture at every reset is cut into pieces when the memory for states is used up."""
    changing = functools.partial(make, "light moved", "step", episode_length=6)
    envs = vlmrm_gym.VLMRewardVectorEnv([changing], reward=brightness, max_pending_bytes=150)
    envs.reset(seed=0)
    for _ in range(6):
        *_, infos = envs.step(PUSH[None])
        assert envs.pending_bytes <= 150
    expected = expected_rewards(0, change="light moved", when="step", episode_length=6)
    np.testing.assert_allclose(infos["vlm_rewards"][0], expected, atol=1e-5)
    envs.close()


def test_cameras_that_differ_are_drawn_by_one_renderer():
    """Environments that have rendered before look at where they were then; still only states leave their processes."""
    scenes = []
    for seed in (0, 1):
        env = gym.make("HalfCheetah-v5", render_mode="rgb_array", width=64, height=48)
        env.reset(seed=seed)
        env.render()
        scenes.append((env, StateView(env, quality="faithful")))
    renderer = scenes[0][1].make_renderer(lambda height, width: (height, width))
    scenes[1][1].use_renderer(renderer)
    for env, scene in scenes:
        state, change = scene.capture()
        assert change is None or change.frame is None
        np.testing.assert_array_equal(States(state[None], [change]).draw(renderer)[0], env.render())
    renderer.close()


class Interrupted(gym.Wrapper):
    """Raises instead of its third step."""

    num_steps = 0

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 3:
            raise TimeoutError
        return self.env.step(action)


def test_a_step_that_raised_loses_no_scene_change():
    """The first environment changes its scene in the step in which the second one raises."""
    makers = [lambda: make("geom recoloured", "step"), lambda: Interrupted(make())]
    envs = vlmrm_gym.VLMRewardVectorEnv(makers, reward=brightness, scoring="step", autoreset_mode="SameStep")
    single = vlmrm_gym.VLMReward(make("geom recoloured", "step"), reward=brightness)
    envs.reset(seed=0), single.reset(seed=0)
    for attempt in range(4):
        expected = single.step(PUSH)[1]
        if attempt == 2:
            with pytest.raises(TimeoutError):
                envs.step(np.stack([PUSH, PUSH]))
            envs.reset(seed=1), single.reset(seed=1)
        else:
            assert envs.step(np.stack([PUSH, PUSH]))[1][0] == pytest.approx(expected, abs=1e-5)
    envs.close(), single.close()


class CopiedWhole(ChangingEnv):
    """Copied with its model, as environments without `EzPickle` are."""

    __getstate__ = object.__getstate__

    def __setstate__(self, state):
        self.__dict__.update(state)


def test_a_copy_watches_its_own_model():
    env = vlmrm_gym.VLMReward(CopiedWhole("geom recoloured", "step"), reward=brightness)
    env.reset(seed=0), env.step(PUSH)
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    reward = env.step(PUSH)[1]
    for one in copies:
        assert one.step(PUSH)[1] == reward
        one.close()
    env.close()
