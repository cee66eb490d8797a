"""Goal images: the formula, what pictures are read as, and every door."""

import copy
import io
import json
import pickle

import gymnasium as gym
import numpy as np
import open_clip
import pytest
import torch
from conftest import TASK_PROMPT, cartpole_frame
from PIL import Image

import vlmrm_gym
from vlmrm_gym import CLIP, CLIPReward
from vlmrm_gym.rewards import from_mapping, sources, to_mapping
from vlmrm_gym.rewards.pictures import MAX_SIDE, as_pictures

CARTPOLE = "VLMRM/CartPole-v1"
UPRIGHT = [cartpole_frame(0, x) for x in (-1, 0, 1)]
FALLEN = [cartpole_frame(80, x) for x in (-1, 1)]


@pytest.fixture
def files(tmp_path):
    """The upright poles as files."""
    names = [tmp_path / f"{number}.png" for number in range(len(UPRIGHT))]
    for name, frame in zip(names, UPRIGHT, strict=True):
        Image.fromarray(frame).save(name)
    return [str(name) for name in names]


def small(frames):
    """Pictures of the size of the bundled model's input."""
    looks = CLIPReward("tiny", prompt=TASK_PROMPT).model.preprocessing()
    return [np.asarray(Image.fromarray(frame).resize((looks.width, looks.height))) for frame in frames]


def test_the_reward_is_that_of_ten_lines_of_numpy_and_open_clip():
    """Of pictures and texts together, with a baseline of both; all pictures have the size that the model looks at."""
    model, _, _ = open_clip.create_model_and_transforms(sources.parse_model_name("tiny").architecture)
    model.eval()
    mean, std = (np.array(model.visual.preprocess_cfg[name]) for name in ("mean", "std"))
    goals, others, seen = small(UPRIGHT), small(FALLEN), small([cartpole_frame(20, 0.5), cartpole_frame(-100, 0)])
    options = {"prompt": TASK_PROMPT, "goal_images": goals, "baseline": "a cart", "baseline_images": others}
    score = CLIPReward("tiny", **options, alpha=0.3)

    def embed(pictures, *texts):
        pixels = torch.from_numpy((np.stack(pictures) / 255 - mean) / std).permute(0, 3, 1, 2).float()
        with torch.no_grad():
            every = np.concatenate([model.encode_image(pixels), *(score.model.encode_text([one]) for one in texts)])
        return every / np.linalg.norm(every, axis=1, keepdims=True)

    goal, baseline = embed(goals, TASK_PROMPT).mean(0), embed(others, "a cart").mean(0)
    goal, baseline, images = goal / np.linalg.norm(goal), baseline / np.linalg.norm(baseline), embed(seen)
    line = (goal - baseline) / np.linalg.norm(goal - baseline)
    projected = baseline + ((images - baseline) @ line)[:, None] * line
    expected = 1 - 0.5 * ((0.3 * projected + 0.7 * images - goal) ** 2).sum(1)
    np.testing.assert_allclose(score(np.stack(seen)), expected, atol=1e-5)


def test_a_picture_is_nearest_to_itself_and_its_own_size_does_not_matter():
    score = CLIPReward("tiny", goal_images=UPRIGHT[1])
    rewards = score(np.stack([UPRIGHT[1], *FALLEN]))
    assert rewards[0] == pytest.approx(1, abs=1e-5)
    assert (rewards[1:] < 0.9).all()
    larger = np.asarray(Image.fromarray(UPRIGHT[1]).resize((1200, 800)))
    assert CLIPReward("tiny", goal_images=[larger])(UPRIGHT[1][None])[0] > 0.99


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_rotation_grey_alpha_and_depth_are_converted_as_documented(tmp_path):
    frame = np.zeros((2, 4, 3), dtype=np.uint8)
    frame[0, 0] = 255, 0, 0
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees
    turned = tmp_path / "turned.png"
    turned.write_bytes(saved(Image.fromarray(frame), exif=exif))
    (picture,) = as_pictures("goal_images", str(turned))
    np.testing.assert_array_equal(picture.frame, np.rot90(frame, -1))

    grey = np.arange(8, dtype=np.uint8).reshape(2, 4)
    (picture,) = as_pictures("goal_images", grey)
    np.testing.assert_array_equal(picture.frame, np.stack([grey] * 3, axis=2))
    deep = tmp_path / "deep.png"
    Image.fromarray(grey.astype(np.uint16) * 256 + 7).save(deep)
    np.testing.assert_array_equal(as_pictures("goal_images", deep)[0].frame, picture.frame)

    clear = np.dstack([frame, np.full((2, 4), 255, dtype=np.uint8)])
    clear[1, :, 3] = 0
    (picture,) = as_pictures("goal_images", clear)
    assert (picture.frame[1] == 255).all()
    np.testing.assert_array_equal(picture.frame[0], frame[0])

    (picture,) = as_pictures("goal_images", np.zeros((100, 4 * MAX_SIDE, 3), dtype=np.uint8))
    assert picture.frame.shape == (25, MAX_SIDE, 3)
    assert len(as_pictures("goal_images", np.stack([frame, frame]))) == 2


def bomb():
    """A small file of 100 megapixels."""
    return saved(Image.new("1", (10_000, 10_000)))


def animation(count=3):
    frames = [Image.new("L", (4, 4), 40 * number) for number in range(count)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


BAD = {
    "no such file": (
        lambda path: "nowhere.png",
        FileNotFoundError,
        "must be files of pictures. Received 'nowhere.png'",
    ),
    "a folder": (lambda path: str(path), FileNotFoundError, "must be files of pictures"),
    "a text": (lambda path: write(path, b"a pole"), ValueError, "must be pictures: PNG, JPEG.*Received"),
    "a torn file": (lambda path: write(path, saved(Image.fromarray(UPRIGHT[0]))[:200]), ValueError, "must be pictures"),
    "a bomb": (lambda path: write(path, bomb()), ValueError, "at most 64 megapixels. Received .*10000 x 10000"),
    "an animation": (lambda path: write(path, animation()), ValueError, "still pictures.*an animation of 3 frames"),
    "floats": (lambda path: np.zeros((4, 4, 3)), TypeError, "uint8 arrays.* Scale to 0..255 and convert"),
    "two channels": (lambda path: np.zeros((4, 4, 2), dtype=np.uint8), ValueError, r"Received \(4, 4, 2\)"),
    "nothing": (lambda path: [], ValueError, "must be from 1 to 1,000 pictures. Received 0"),
    "a number": (lambda path: [3], TypeError, "must be files of pictures, or uint8 arrays.*Received 3"),
    "no base64": (lambda path: "data:image/png;base64,%%%", ValueError, 'must be "data:image/png;base64,..."'),
    "no picture": (lambda path: "data:text/html;base64,PHNjcmlwdD4=", ValueError, "must be pictures: PNG"),
    "a long name": (lambda path: "a" * 5_000, FileNotFoundError, "must be files of pictures"),
    "32 bits": (lambda path: write(path, saved(Image.new("I", (4, 4)), "TIFF")), ValueError, "of 8 or 16 bits"),
}


def write(folder, content):
    (path := folder / "picture.png").write_bytes(content)
    return str(path)


@pytest.mark.parametrize("what", BAD)
def test_bad_pictures_are_a_sentence(what, tmp_path):
    make, error, message = BAD[what]
    with pytest.raises(error, match=f"`goal_images` .*{message}") as raised:
        CLIP(prompt="a pole", goal_images=make(tmp_path))
    assert len(str(raised.value)) < 600
    assert "\n" not in str(raised.value)


def test_a_photo_of_a_phone_has_a_preview_which_is_no_animation(tmp_path):
    photo = saved(Image.fromarray(UPRIGHT[0]), "MPO", save_all=True, append_images=[Image.fromarray(UPRIGHT[1])])
    assert len(as_pictures("goal_images", write(tmp_path, photo))) == 1


def test_a_reward_is_a_value_that_has_its_pictures(files, tmp_path):
    """Files are read once: the reward is the same when they are gone, and no array or path is in it."""
    reward = CLIP(goal_images=files, baseline_images=FALLEN, model="tiny")
    assert reward == CLIP(goal_images=UPRIGHT, baseline_images=np.stack(FALLEN), model="tiny")
    for file in tmp_path.iterdir():
        file.unlink()
    mapping = json.dumps(to_mapping(reward))
    for other in (from_mapping(json.loads(mapping)), copy.deepcopy(reward), pickle.loads(pickle.dumps(reward))):
        assert other == reward
        np.testing.assert_array_equal(other.goal_images[0].frame, UPRIGHT[0])
    assert str(tmp_path) not in mapping
    assert len(repr(reward)) < 500


def pay(env):
    env.reset(seed=0)
    return env.step(0)[1]


def test_every_door_takes_them(files):
    expected = CLIPReward("tiny", goal_images=UPRIGHT)
    frame = gym.make(CARTPOLE, prompt=TASK_PROMPT)
    pay(frame)
    size = frame.unwrapped.screen_height, frame.unwrapped.screen_width
    assert size == UPRIGHT[0].shape[:2]
    by_hand = float(expected(frame.render()[None])[0])
    base = gym.make("CartPole-v1", render_mode="rgb_array")
    for env in (
        gym.make(CARTPOLE, goal_images=files),
        gym.make(CARTPOLE, goal_images=UPRIGHT),
        gym.make(CARTPOLE, reward={"kind": "clip", "goal_images": files}),
        gym.make(CARTPOLE, reward=CLIP(goal_images=files)),
        vlmrm_gym.VLMReward(base, goal_images=files),
    ):
        assert pay(env) == pytest.approx(by_hand, abs=0.02)  # drawn at the model's size, not scaled to it
    envs = gym.make_vec(CARTPOLE, 2, goal_images=files, scoring="step")
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, dtype=int))[1] == pytest.approx(by_hand, abs=0.02)
    envs.close()
    both = pay(gym.make(CARTPOLE, goal_images=files, prompt=[TASK_PROMPT]))
    assert both == pytest.approx(pay(gym.make(CARTPOLE, reward=CLIP(prompt=TASK_PROMPT, goal_images=files))), abs=1e-5)
    assert abs(both - by_hand) > 0.02


@pytest.mark.parametrize("id", [CARTPOLE, "VLMRM/MountainCarContinuous-v0", "VLMRM/Humanoid-kneel-v0"])
def test_the_goals_of_a_task_are_drawn_as_the_environment_is(id):
    """A state of the goal is paid more than the initial one; the specification keeps the word."""
    options = {"camera": "front-side", "textured": False} if "Humanoid" in id else {}
    env = gym.make(id, goal_images="task", **options)
    assert env.spec.kwargs["goal_images"] == "task"
    task = vlmrm_gym.tasks.REGISTERED[id].make_states()
    states = task.sample(20, np.random.default_rng(0))
    view, model = env.get_wrapper_attr("_view"), env.get_wrapper_attr("_scorer")._encoder.model
    goal, others = (model(view.draw_views(own)) for own in (task.example_goal()[None], states[~task.succeeds(states)]))
    assert goal.min() > np.median(others)
    if id == CARTPOLE:
        gym.make_vec(id, 1, reward={"kind": "clip", "goal_images": "task"}).close()


def test_only_registered_tasks_have_goals():
    base = gym.make("CartPole-v1", render_mode="rgb_array")
    with pytest.raises(ValueError, match="`goal_images`='task' is for environments of registered tasks"):
        vlmrm_gym.VLMReward(base, goal_images="task")
    with pytest.raises(ValueError, match="is for tasks whose goals are known"):
        gym.make("VLMRM/Humanoid-v0", goal_images="task")
    with pytest.raises(TypeError, match=r"`prompt` must be a text.* or show it: goal_images"):
        vlmrm_gym.VLMReward(base)
    with pytest.raises(ValueError, match=r"which is a file. Pass a picture as goal_images=\["):
        CLIP(prompt=__file__)
