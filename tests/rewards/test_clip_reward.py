"""CLIPReward: the formula, its invariances, and its errors."""

import weakref

import gymnasium as gym
import numpy as np
import open_clip
import pytest
import torch
from conftest import TASK_PROMPT, cartpole_frame
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from vlmrm_gym import CLIPReward, EpisodeLog
from vlmrm_gym.rewards import tiny
from vlmrm_gym.rewards.clip_model import GoalBaseline

BASELINE = "pole and cart"


def published_reward(image, goal, baseline, alpha):
    """Equation 3 as the paper writes it, in float64, by geometry: project s onto the line through goal and baseline."""
    direction = goal - baseline
    projected = baseline + direction * ((image - baseline) @ direction) / (direction @ direction)
    return 1 - 0.5 * np.sum((alpha * projected + (1 - alpha) * image - goal) ** 2)


def unit(vector):
    return vector / np.linalg.norm(vector)


@given(seed=st.integers(0, 2**32 - 1), alpha=st.floats(0, 1), size=st.integers(2, 64))
@settings(max_examples=100, deadline=None)
def test_goal_baseline_is_equation_3(seed, alpha, size):
    rng = np.random.default_rng(seed)
    goal, baseline, *images = (unit(rng.normal(size=size)) for _ in range(5))
    if np.linalg.norm(goal - baseline) < 0.1:
        return
    expected = [published_reward(image, goal, baseline, alpha) for image in images]
    goal, baseline, images = (torch.tensor(np.array(own), dtype=torch.float32) for own in (goal, baseline, images))
    np.testing.assert_allclose(GoalBaseline.from_embeddings(goal, baseline, alpha)(images), expected, atol=1e-5)


@pytest.fixture(scope="module")
def frames():
    return np.stack([cartpole_frame(angle, position) for angle in (-60, -20, 0, 3, 45, 120) for position in (-1, 0.5)])


@pytest.fixture
def score():
    """Scores the cart-poles in one batch."""
    return CLIPReward("tiny", prompt=TASK_PROMPT, batch_size=12)


def embeddings(score, frames):
    """Unit vectors of frames, float64, one frame at a time."""
    images = [
        score.model.encode_image(score.model.preprocessing()(torch.from_numpy(frame[None])))[0] for frame in frames
    ]
    return torch.stack(images).double().numpy()


def test_rewards_of_frames_are_equation_3(frames):
    """Several prompts are averaged, and the average is normalised again."""
    for alpha in (0.0, 0.3, 1.0):
        score = CLIPReward("tiny", prompt=TASK_PROMPT, baseline=BASELINE, alpha=alpha)
        goal, baseline = score.model.encode_text([TASK_PROMPT, BASELINE]).double().numpy()
        expected = [published_reward(image, goal, baseline, alpha) for image in embeddings(score, frames)]
        np.testing.assert_allclose(score(frames), expected, atol=1e-5)
    prompts = ["an upright pole", "the pole has fallen to the left"]
    score = CLIPReward("tiny", prompt=prompts)
    goal = unit(score.model.encode_text(prompts).double().numpy().mean(0))
    np.testing.assert_allclose(score(frames), embeddings(score, frames) @ goal, atol=1e-5)


@pytest.mark.parametrize(("how", "combine"), [("min", np.min), ("mean", np.mean)])
def test_two_views_are_worth_what_open_clip_and_numpy_say(how, combine):
    """From the frames that are drawn to the reward in ten lines, without a line of this package."""
    prompts, log = {"prompt": "a standing humanoid robot", "baseline": "a humanoid robot"}, EpisodeLog(10**6)
    options = {"camera": "front-side", "combine_views": how, "episode_length": 4, "episode_log": log, "textured": False}
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", 1, model="tiny", alpha=0.5, **prompts, **options)
    envs.reset(seed=0)
    rewards = [envs.step(envs.action_space.sample())[4] for _ in range(4)][-1]["vlm_rewards"][0]
    frames = envs.scorer.frames(log.episodes[0].states)
    envs.close()

    network = open_clip.create_model(f"local-dir:{tiny.FOLDER}").eval()
    tokens = open_clip.get_tokenizer(f"local-dir:{tiny.FOLDER}")(list(prompts.values()))
    assert frames.shape == (4, 2, 192, 192, 3)
    transform = image_transform_v2(PreprocessCfg(**network.visual.preprocess_cfg), is_train=False)
    pixels = torch.stack([transform(Image.fromarray(frame)) for frame in frames.reshape(8, 192, 192, 3)])
    with torch.no_grad():
        images = network.encode_image(pixels, normalize=True)
        goal, baseline = network.encode_text(tokens, normalize=True).double().numpy()
    of_views = [published_reward(image, goal, baseline, 0.5) for image in images.double().numpy()]
    np.testing.assert_allclose(rewards, combine(np.reshape(of_views, (4, 2)), axis=1), atol=1e-5)


def test_batch_size_does_not_change_rewards(frames, score):
    """Contract 3."""
    for batch_size in (1, 5):
        own = CLIPReward("tiny", prompt=TASK_PROMPT, batch_size=batch_size)
        np.testing.assert_allclose(own(frames), score(frames), atol=1e-5)


def test_numpy_frames_give_numpy_rewards_and_torch_frames_torch_rewards(frames, score):
    """They can be used in autograd: a tensor born in inference mode could not."""
    from_numpy, from_torch = score(frames), score(torch.from_numpy(frames))
    assert isinstance(from_numpy, np.ndarray)
    assert (from_numpy.dtype, from_numpy.shape, from_torch.dtype) == (np.float32, (12,), torch.float32)
    np.testing.assert_array_equal(from_numpy, from_torch.numpy())
    weight = torch.ones(len(frames), requires_grad=True)
    (weight * from_torch).sum().backward()
    np.testing.assert_array_equal(weight.grad, from_numpy)


def test_frames_may_be_flipped_or_read_only_views(frames, score):
    """MuJoCo's frames have negative strides, which torch refuses."""
    flipped, read_only = np.ascontiguousarray(frames[:, ::-1])[:, ::-1], frames.copy()
    read_only.setflags(write=False)
    np.testing.assert_array_equal(score(flipped), score(frames))
    np.testing.assert_array_equal(score(read_only), score(frames))


@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    resize_mode=st.sampled_from([None, "squash", "shortest", "longest"]),
)
@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")
@settings(max_examples=10, deadline=None)
def test_any_height_and_width(height, width, resize_mode):
    score = CLIPReward("tiny", prompt=TASK_PROMPT, resize_mode=resize_mode)
    rewards = score(np.full((2, height, width, 3), 200, dtype=np.uint8))
    assert np.isfinite(rewards).all()
    assert (abs(rewards) <= 1 + 1e-5).all()


@pytest.fixture
def full_gpu(monkeypatch, score):
    """Makes batches of more than so many frames raise an error, and keeps the sizes of all."""

    def make(limit, error):
        tower, sizes = type(score.model.network.visual), []
        encode = tower.forward

        def forward(self, images):
            sizes.append(len(images))
            if len(images) > limit:
                raise type(error)(*error.args)  # another one: a kept traceback would hold the images
            return encode(self, images)

        monkeypatch.setattr(tower, "forward", forward)
        return sizes

    return make


def test_a_full_gpu_halves_the_batch_until_it_fits(frames, full_gpu, score, monkeypatch):
    """A retry does not hold the memory of the failed attempt."""
    expected, preprocess, made = score(frames), score._preprocess, []

    def recorded(batch):
        assert all(images() is None for images in made)
        images = preprocess(batch)
        made.append(weakref.ref(images))
        return images

    monkeypatch.setattr(score, "_preprocess", recorded)
    sizes = full_gpu(3, torch.OutOfMemoryError("CUDA out of memory"))
    np.testing.assert_allclose(score(frames), expected, atol=1e-5)
    assert sizes == [12, 6, 3, 3, 3, 3]
    assert (score.batch_size, len(made)) == (3, 6)


@pytest.mark.parametrize(
    "text", ["CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory"]
)
def test_errors_that_mean_a_full_gpu(frames, full_gpu, score, text):
    """CUDA's libraries allocate by themselves, too, and PyTorch has other errors for that."""
    full_gpu(6, RuntimeError(f"{text} when calling something"))
    score(frames)
    assert score.batch_size == 6


def test_what_a_smaller_batch_does_not_mend_is_raised(frames, full_gpu, score):
    for limit, error in [
        (6, RuntimeError("CUDA error: device-side assert triggered")),
        (0, torch.OutOfMemoryError("CUDA out of memory")),  # one frame is too much
    ]:
        full_gpu(limit, error)
        with pytest.raises(type(error), match=str(error)):
            score(frames)


def test_several_prompts_are_heads_of_the_same_features(frames, score):
    """What one reward encodes, torch or flipped frames too, the head of another prompt scores as that reward does."""
    other = CLIPReward("tiny", prompt="an upright pole")
    for own in (torch.from_numpy(frames), frames[:, ::-1]):
        np.testing.assert_allclose(other.head(score.encode(own)), other(own), atol=1e-6)
    longest = CLIPReward("tiny", prompt=TASK_PROMPT, resize_mode="longest")
    assert score.fingerprint == other.fingerprint != longest.fingerprint


def test_wrong_frames(score):
    for wrong, error, message in [
        ([[1, 2, 3]], TypeError, "NumPy or torch. Received list"),
        (np.zeros((1, 4, 4, 3), np.float32), TypeError, "Received dtype float32. Scale to 0..255 and convert"),
        (np.zeros((4, 4, 3), np.uint8), ValueError, r"Received shape \(4, 4, 3\). For one frame, pass frame\[None\]"),
        (np.zeros((1, 3, 4, 4), np.uint8), ValueError, r"Received shape \(1, 3, 4, 4\). Channels come last"),
        (np.zeros((0, 4, 4, 3), np.uint8), ValueError, "none of them 0"),
    ]:
        with pytest.raises(error, match=r"`frames` must be uint8 of shape \(B, H, W, 3\).*" + message):
            score(wrong)
