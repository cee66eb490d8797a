"""What needs a GPU: `make gpu-check`, or `pytest -m gpu`. Without a GPU every test here skips itself.

GPU_TESTS_DEVICE=cpu runs the same tests on a CPU, as `.ci/run` does, so that they are code that has run; what only a
GPU has is skipped. GPU_TESTS_MODEL names a model on this machine to score with beside the bundled one, such as
ViT-B-32/path/to/weights.safetensors.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch._inductor.config
from backends import children
from conftest import TASK_PROMPT, cartpole_frame

from vlmrm_gym import CLIPReward
from vlmrm_gym.data.replay import Batch

DEVICE = os.environ.get("GPU_TESTS_DEVICE", "cuda")
MODELS = ["tiny", *filter(None, [os.environ.get("GPU_TESTS_MODEL")])]
ROOT = Path(__file__).parent.parent
HUMANOID, MOUNTAIN_CAR = "VLMRM/Humanoid-stand-v0", "VLMRM/MountainCarContinuous-v0"
TOLERANCE = {"fp32": 1e-3, "fp16": 1e-3, "bf16": 1e-2}
"""Of rewards in each precision, from those of the CPU in float32. Convolutions in float32 use TF32 on a GPU."""

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # drivers and compilers warn


@pytest.fixture(scope="module", autouse=True)
def device():
    """Where the tests run; they are skipped where there is no such device."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return DEVICE


@pytest.fixture
def cuda(device):
    """Skips what a CPU does not have."""
    if device != "cuda":
        pytest.skip("a CPU has nothing like it")


@pytest.fixture(scope="module")
def frames():
    """Cart-pole at 16 angles, uint8 (16, 400, 600, 3)."""
    return np.stack([cartpole_frame(angle) for angle in np.linspace(-90, 90, 16)])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", TOLERANCE)
def test_rewards_are_those_of_the_cpu(frames, model, precision):
    options = {"prompt": TASK_PROMPT, "baseline": "pole and cart", "alpha": 0.5}
    expected = CLIPReward(model, device="cpu", precision="fp32", **options)(frames)
    rewards = CLIPReward(model, device=DEVICE, precision=precision, **options)(frames)
    np.testing.assert_allclose(rewards, expected, rtol=0, atol=TOLERANCE[precision])


@pytest.mark.parametrize("model", MODELS)
def test_a_frames_reward_does_not_depend_on_its_batch_and_rewards_of_a_tensor_are_on_its_device(frames, model):
    score = CLIPReward(model, prompt=TASK_PROMPT, device=DEVICE)
    expected = score(frames)
    alone = np.concatenate([score(frame[None]) for frame in frames])
    np.testing.assert_allclose(expected, alone, rtol=0, atol=1e-3)
    rewards = score(torch.from_numpy(frames).to(DEVICE))
    assert rewards.device == score.model.device
    np.testing.assert_allclose(rewards.cpu().numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("cuda")
def test_a_batch_that_does_not_fit_is_halved():
    count, size = 8192, 96
    frames = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    score = CLIPReward("tiny", prompt=TASK_PROMPT, device=DEVICE, batch_size=64)
    expected, score.batch_size = score(frames), count
    device = score.model.device
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved(device) + frames.nbytes  # not enough for the same frames in float16, too
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(allowed / total, device)
    try:
        rewards = score(frames)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert score.batch_size < count
    np.testing.assert_allclose(rewards, expected, rtol=0, atol=1e-3)


def episode(halfway=lambda: None, **options):
    """Rewards, float32 (3, 10), of an episode of three humanoids, with the same seeds and actions at every call."""
    envs = gym.make_vec(HUMANOID, num_envs=3, episode_length=10, **({"device": DEVICE} | options))
    envs.action_space.seed(0)
    envs.reset(seed=0)
    steps = []
    for number in range(10):
        if number == 5:
            halfway()
        steps.append(envs.step(envs.action_space.sample()))
    envs.close()
    if options.get("scoring") == "step":
        return np.stack([rewards for _, rewards, *_ in steps], axis=1)
    return np.stack(steps[-1][4]["vlm_rewards"])


@pytest.fixture(scope="module")
def expected():
    """The rewards of the episode, deferred and scored in this process."""
    rewards = episode()
    assert rewards.std() > 1e-3
    return rewards


@pytest.mark.parametrize("how", [{"scoring": "step"}, {"num_workers": 1}, {"num_workers": 4}], ids=str)
def test_rewards_of_every_step_and_of_workers_on_one_gpu_are_the_deferred_ones(expected, how):
    np.testing.assert_allclose(episode(**how), expected, rtol=0, atol=1e-3)


@pytest.mark.usefixtures("cuda")
def test_ray_actors_that_share_a_gpu_agree(expected, request):
    request.getfixturevalue("ray_cluster")  # not started for a test that is skipped
    rewards = episode(num_workers=2, backend="ray", ray_options={"num_cpus": 1, "num_gpus": 0.5})
    np.testing.assert_allclose(rewards, expected, rtol=0, atol=1e-3)


@pytest.mark.usefixtures("cuda")
def test_every_gpu_gets_a_worker(expected):
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if len(devices) < 2:
        pytest.skip("there is one GPU")

    def free_memory():
        return np.array([torch.cuda.mem_get_info(device)[0] for device in devices])

    before, during = free_memory(), []
    options = {"device": "auto", "devices": devices, "num_workers": len(devices)}
    rewards = episode(lambda: during.append(free_memory()), **options)
    np.testing.assert_allclose(rewards, expected, rtol=0, atol=1e-3)
    assert (before - during[0] > 100e6).all()


def test_a_worker_that_is_killed_is_replaced(expected):
    """It is the only one, so that all rewards are its successor's."""
    earlier, killed = children(), []

    def kill():
        killed.extend(children() - earlier)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    np.testing.assert_allclose(episode(kill, num_workers=1), expected, rtol=0, atol=1e-3)
    assert len(killed) == 1


DRAW = """
import ctypes, sys
import gymnasium as gym
import numpy as np
import vlmrm_gym
from vlmrm_gym.states.opengl import as_current, backend, make_context

context = make_context(8, 8)
with as_current(context):
    from OpenGL import GL
    drawn = {"renderer": GL.glGetString(GL.GL_RENDERER).decode()}
context.free()
device, number = ctypes.c_ssize_t(), ctypes.c_ssize_t(-1)
if backend() == "egl":
    import mujoco.egl
    from OpenGL import EGL
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_ssize_t))
    EGL_DEVICE_EXT, EGL_CUDA_DEVICE_NV = 0x322C, 0x323A  # a CPU does not have the second
    query(EGL.eglGetProcAddress("eglQueryDisplayAttribEXT"))(mujoco.egl.EGL_DISPLAY, EGL_DEVICE_EXT, device)
    query(EGL.eglGetProcAddress("eglQueryDeviceAttribEXT"))(device.value, EGL_CUDA_DEVICE_NV, number)
drawn["cuda_device"] = number.value
for quality in ("fast", "faithful"):
    reward = lambda frames: np.zeros(len(frames))
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=1, reward=reward, quality=quality)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    frames = []
    for _ in range(8):
        envs.step(envs.action_space.sample())
        frames.append(envs.render()[0].copy())
    envs.close()
    drawn[quality] = np.stack(frames)
np.savez(sys.argv[1], **drawn)
"""


def draw(file, **environment):
    """What DRAW writes in a process of its own, which has the environment's OpenGL; None where it cannot draw."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    command = [sys.executable, "-W", "ignore", "-c", DRAW, str(file)]
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, timeout=300)
    if "DependencyNotInstalled" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(file) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """What the default renderer draws; skips where the GPU does not."""
    drawn = draw(tmp_path_factory.mktemp("drawn") / "default.npz")
    if DEVICE == "cuda" and (drawn is None or drawn["cuda_device"] < 0):
        what = "nothing" if drawn is None else drawn["renderer"]
        pytest.skip(f"{what} draws, not the GPU. Containers need NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics")
    return drawn


def test_frames_are_those_of_software(drawn, tmp_path):
    """But for edges, where drivers round differently; and so are their rewards."""
    software = draw(tmp_path / "software.npz", MUJOCO_GL="osmesa")
    if software is None:
        pytest.skip("there is no software renderer to compare with (apt-get install libosmesa6)")
    score = CLIPReward("tiny", prompt="a humanoid robot standing up", device="cpu")
    for quality in ("fast", "faithful"):
        frames, expected = drawn[quality], software[quality]
        assert expected.std() > 10, quality
        apart = np.abs(frames.astype(np.int16) - expected)
        assert apart.mean() < 1, quality
        assert (apart.max(-1) > 32).mean() < 0.02, quality
        np.testing.assert_allclose(score(frames), score(expected), rtol=0, atol=0.02, err_msg=quality)


@pytest.mark.usefixtures("drawn")
def test_mujoco_egl_device_id_chooses_what_draws(tmp_path, monkeypatch):
    num_devices = torch.cuda.device_count() if DEVICE == "cuda" else 1
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # it would number the devices anew
    for number in range(num_devices):
        chosen = draw(tmp_path / "drawn.npz", MUJOCO_GL="egl", MUJOCO_EGL_DEVICE_ID=str(number))
        assert chosen["cuda_device"] == (number if DEVICE == "cuda" else -1)


def test_compiled_losses_are_the_eager_ones(device, monkeypatch):
    """Several calls: the first ones record CUDA graphs, later ones replay them."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import sac_continuous

    args = sac_continuous.default_args(MOUNTAIN_CAR)
    envs = sac_continuous.make_envs(args, 1)
    agent = sac_continuous.Agent(envs, args).to(device)
    envs.close()
    batch = Batch(*(torch.rand(64, *shape, device=device) for shape in ((2,), (1,), (2,), (), ())))
    how = {"mode": "reduce-overhead"} if device == "cuda" else {"backend": "aot_eager"}  # no compiler for a CPU
    compiled = torch.compile(agent.losses, **how)

    def gradients(losses, seed):
        torch.manual_seed(seed)
        agent.zero_grad()
        values = losses(batch, update_actor=seed % 2 == 0)
        torch.stack(values).sum().backward()
        found = [*values, *(one.grad for one in agent.parameters() if one.grad is not None)]
        return [one.detach().clone() for one in found]  # the next call overwrites the memory of a CUDA graph

    with torch._inductor.config.patch(fallback_random=True):  # draws the eager mode's random numbers
        for seed in range(6):
            torch.testing.assert_close(gradients(compiled, seed), gradients(agent.losses, seed), rtol=1e-3, atol=1e-4)


SAC = (
    f"examples/sac_continuous.py --env-id {MOUNTAIN_CAR} --no-textured --num-envs 1 --learning-starts 400 "
    "--updates-per-step 0.1 --eval-episodes 1 --no-capture-video --checkpoint-frequency 400 --total-timesteps 500 "
    f"--device {DEVICE} --runs-folder FOLDER"
)
TRAIN = (
    "-m vlmrm_gym train --env-name VLMRM/CartPole-v1 --run-name run --rl.n-steps 40 --rl.episode-length 10 "
    "--rl.n-envs-per-worker 1 --rl.learning-starts 20 --logging.video-freq 0 --logging.checkpoint-freq 20 "
    f"--reward.device {DEVICE} --rl.device {DEVICE} --base-path FOLDER"
)


@pytest.mark.parametrize(
    ("command", "resume"),
    [
        (SAC, "examples/sac_continuous.py --total-timesteps 600 --resume RUN"),
        (TRAIN, "-m vlmrm_gym train --rl.n-steps 60 --resume RUN"),
    ],
    ids=["single file", "command"],
)
def test_trainings_run_and_resume(tmp_path, command, resume):
    for arguments in (command, resume):
        arguments = arguments.replace("FOLDER", str(tmp_path)).replace("RUN", str(next(tmp_path.iterdir(), "")))
        done = subprocess.run([sys.executable, *arguments.split()], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
