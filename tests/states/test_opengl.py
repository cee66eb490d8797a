"""OpenGL contexts of other code: the context that is current before this package renders is current afterwards."""

import gc
import os
import subprocess
import sys
import textwrap
import weakref

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import AddRenderObservation

import vlmrm_gym
from vlmrm_gym.states.opengl import as_current, free_context, make_context

pytestmark = [pytest.mark.usefixtures("no_collection"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def brightness(frames):
    return frames.mean((1, 2, 3))


def hopper(**kwargs):
    """Unlike the ant's, its camera does not depend on the state in which it renders first."""
    return gym.make("Hopper-v5", render_mode="rgb_array", width=64, height=64, **kwargs)


def run(code, backend="egl"):
    """Run a program in a process of its own; returns what it prints."""
    environment = {**os.environ, "MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


def test_no_garbage_is_collected_in_a_context_of_ours():
    """MuJoCo frees a viewer's objects by number in whatever context is current, and frames of that turn black."""
    context = make_context(8, 8)
    from OpenGL import GL  # after MuJoCo has chosen its platform

    dropped = hopper()
    dropped.reset(seed=0)
    dropped.render()
    dropped.itself = dropped  # garbage only for the collector
    viewer = weakref.ref(dropped)
    gc.enable()
    with as_current(context):
        framebuffer = GL.glGenFramebuffers(1)
        GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, framebuffer)
        del dropped
        _ = [[] for _ in range(100_000)]  # enough for the collector to start otherwise
        assert viewer() is not None
        assert GL.glIsFramebuffer(framebuffer)
    assert gc.isenabled()
    gc.collect()
    assert viewer() is None
    free_context(context)


def test_pixel_observations_are_unchanged():
    """Those of an environment that renders itself, with and without the reward around it, which draws on a thread."""

    def make():
        return AddRenderObservation(hopper(max_episode_steps=2), render_only=True)

    def observe(env):
        actions = np.random.default_rng(0).uniform(-1, 1, (2, *env.action_space.shape)).astype(np.float32)
        seen = [env.reset(seed=0)[0], *(env.step(action)[0] for action in actions)]
        env.close()
        return np.stack(seen).reshape(3, 64, 64, 3)

    expected = observe(make())
    assert expected.mean() > 50
    np.testing.assert_array_equal(observe(vlmrm_gym.VLMReward(make(), reward=brightness)), expected)
    np.testing.assert_array_equal(observe(vlmrm_gym.VLMRewardVectorEnv([make], reward=brightness)), expected)


def test_a_viewer_keeps_its_context_while_others_are_made_used_and_freed():
    """And both backends draw the same."""
    code = """
    import gymnasium as gym
    from vlmrm_gym.states import StateView
    from vlmrm_gym.states.opengl import as_current, free_context, make_context
    env = gym.make("Ant-v5", render_mode="rgb_array", width=64, height=64)
    env.reset(seed=0)
    before = env.render().copy()
    def check():
        assert (env.render() == before).all()
    context = make_context(8, 8)
    check()
    with as_current(context):
        pass
    check()
    free_context(context)
    check()
    scene = StateView(env)
    brightness = scene.render().mean()
    check()
    scene.close()
    check()
    assert before.mean() > 50
    print(brightness)
    """
    # With OSMesa, PyOpenGL prints more at exit.
    egl, osmesa = (float(run(code, backend).split()[0]) for backend in ("egl", "osmesa"))
    assert egl == pytest.approx(osmesa, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["gymnasium", "nothing"])
def test_rendering_works_before_and_after_the_model_is_loaded(first):
    """Mesa's LLVM and Triton's live in one process whichever comes first: optimizers and torchvision import Triton."""
    code = f"""
    import gymnasium as gym
    env = gym.make("Ant-v5", render_mode="rgb_array", width=64, height=64)
    env.reset(seed=0)
    first = {first!r}
    if first == "gymnasium":
        env.render()
    import vlmrm_gym
    env = vlmrm_gym.VLMReward(env, "an ant robot on its back", model="tiny")
    env.reset(seed=0)
    reward = env.step(env.action_space.sample())[1]
    import torch
    weight = torch.nn.Parameter(torch.ones(1))
    weight.sum().backward()
    torch.optim.Adam([weight]).step()
    import torchvision
    print(reward)
    """
    assert -1 <= float(run(code)) <= 1


def test_a_context_that_was_destroyed_while_it_was_current_is_not_restored():
    """As by the viewer of an environment that is closed or collected."""
    output = run("""
        import mujoco.egl
        from OpenGL import EGL

        from vlmrm_gym.states.opengl import as_current, make_context

        foreign = mujoco.egl.GLContext(32, 32)
        foreign.make_current()
        EGL.eglDestroyContext(mujoco.egl.EGL_DISPLAY, foreign._context)
        foreign._context = None
        context = make_context(32, 32)
        print(bool(EGL.eglGetCurrentContext()))
        with as_current(context):
            print(bool(EGL.eglGetCurrentContext()))
        """)
    assert output.split() == ["False", "True"]
