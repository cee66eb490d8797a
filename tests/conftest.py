"""Shared by all tests. Nothing here or below may download anything."""

import gc
import os
import shutil
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs; child processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported, for its own renderer

from pathlib import Path

import numpy as np
import pytest
from browsing import CHROMIUM

import vlmrm_gym  # noqa: F401  (registers the IDs)
from vlmrm_gym.rewards import models
from vlmrm_gym.rewards.program.sandbox import is_supported
from vlmrm_gym.tasks.cartpole import CartPole

HELD_OUT_FOLDER = Path(__file__).parent / "bundled_model" / "heldout"
TASK_PROMPT = "pole vertically upright on top of the cart"
LIBRARIES_WARN = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
"""Of tests that train and write videos: TensorBoard, Stable-Baselines3 and imageio warn."""


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def no_collection():
    """A viewer of Gymnasium's that is collected spoils the frames of another: MuJoCo frees by number."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """The folder of the test, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def make_module(tmp_path, monkeypatch):
    """A function that writes a module, makes it importable for the test, and returns its folder."""
    folder, names = tmp_path / "modules", []

    def make(name: str, source: str) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(folder)
        names.append(name)
        return folder

    yield make
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def _barely_trained(tmp_path_factory):
    """The folder of a run of cart-pole that has barely begun to learn."""
    from vlmrm_gym.tools.cli import main

    path = tmp_path_factory.mktemp("runs")
    flags = ["--reward.name", "ground_truth", "--rl.n-steps", "40", "--rl.episode-length", "10"]
    flags += ["--rl.n-envs-per-worker", "1", "--rl.learning-starts", "20", "--logging.video-freq", "0"]
    main(["train", "--env-name", "VLMRM/CartPole-v1", "--base-path", str(path), "--run-name", "barely", *flags])
    return path / "barely"


@pytest.fixture
def cart_pole_run(_barely_trained, tmp_path):
    """A copy of the folder of a run of cart-pole that has barely begun to learn."""
    return Path(shutil.copytree(_barely_trained, tmp_path / "runs" / "barely"))


@pytest.fixture(scope="module")
def ray_cluster():
    """A local Ray cluster with 8 CPUs that the tests, as users, have connected to."""
    ray = pytest.importorskip("ray")
    from vlmrm_gym.scoring.ray_cluster import import_ray

    import_ray()
    ray.init(address="local", num_cpus=8, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield ray
    assert ray.is_initialized(), "a cluster of the user is not ours to end"
    ray.shutdown()


@pytest.fixture(scope="module")
def browser():
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root cannot have one
        yield opened
        opened.close()


@pytest.fixture
def api_key(monkeypatch):
    """A key in the environment, for clients that ask again soon; no answers are known."""
    from vlm_server import KEY

    from vlmrm_gym.rewards.endpoint.reward import _open_scores

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("vlmrm_gym.rewards.endpoint.connection.FIRST_PAUSE", 0.01)
    _open_scores.cache_clear()


@pytest.fixture
def server(api_key):
    """A server that answers from the pixels that it is sent, and its key in the environment."""
    from vlm_server import VLMServer

    with VLMServer(logprobs="tokens") as server:
        yield server


@pytest.fixture
def make_envs():
    """`vlmrm_gym.sb3.make_vec_env`, of environments that are closed when the test ends."""
    from vlmrm_gym.sb3 import make_vec_env

    made = []
    yield lambda *args, **kwargs: made.append(make_vec_env(*args, **kwargs)) or made[-1]
    for envs in made:
        envs.close()


@pytest.fixture
def counting():
    """`sb3_helpers.make_counting`, of environments that are closed when the test ends."""
    from sb3_helpers import make_counting

    made = []
    yield lambda *args, **kwargs: made.append(make_counting(*args, **kwargs)) or made[-1]
    for envs, _ in made:
        envs.close()


RAY = pytest.param("ray", marks=pytest.mark.slow)
"""A cluster takes seconds to start, an actor another."""


@pytest.fixture(params=["local", "process", RAY])
def backend(request):
    """Every backend, by name."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


@pytest.fixture(params=["process", RAY])
def worker_backend(request):
    """Every backend with workers, by name."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


def pytest_collection_modifyitems(items):
    """Skip the tests of programs where nothing isolates them."""
    if not is_supported():
        skipped = pytest.mark.skip(reason="isolation needs Linux on x86_64 or aarch64")
        for item in items:
            if item.path.parent.name == "program":
                item.add_marker(skipped)


def cartpole_frame(angle: float, position: float = 0.0) -> np.ndarray:
    """What cart-pole looks like: uint8 (400, 600, 3) for an angle in degrees and a cart position."""
    env = CartPole(render_mode="rgb_array")
    env.reset()
    env.state = np.array([position, 0.0, np.deg2rad(angle), 0.0])
    frame = env.render()
    assert frame is not None
    return frame


def embed(frames: np.ndarray) -> np.ndarray:
    """The bundled model's unit vectors of frames, float32 (B, D)."""
    import torch

    model = models.load("tiny")
    preprocess = model.preprocessing()
    batches = np.array_split(frames, max(1, len(frames) // 64))
    return torch.cat([model.encode_image(preprocess(torch.from_numpy(batch))) for batch in batches]).numpy()


def similarities(embeddings: np.ndarray, texts: list[str]) -> np.ndarray:
    """Cosine similarities (..., texts) of unit vectors (..., D)."""
    return embeddings @ models.load("tiny").encode_text(texts).numpy().T
