"""`Robometer` asks a server that speaks the protocol of Robometer's evaluation server, which is written here anew."""

import io
import json
from email.parser import BytesParser

import gymnasium as gym
import numpy as np
import pytest
from vlm_server import VLMServer, busy, send

import vlmrm_gym
from vlmrm_gym import InputError


class Server(VLMServer):
    """Answers with the mean grey of every frame of a clip, from 0 to 1; or with what `faults` has next."""

    samples = ()

    def serve(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if self.faults:
            return self.faults.popleft()(handler)
        assert handler.path == "/v1/evaluate_batch_npy"
        kind = handler.headers["Content-Type"]
        form = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
        parts = {one.get_param("name", header="content-disposition"): one for one in form.get_payload()}
        contents = {name: one.get_payload(decode=True) for name, one in parts.items()}
        assert contents.pop("use_frame_steps") == b"false"
        samples = [json.loads(contents[f"sample_{i}"]) for i in range(len(contents) // 2)]
        traces = []
        for sample in samples:
            assert sample["sample_type"] == "progress"
            frames = np.load(io.BytesIO(contents[sample["trajectory"]["frames"]["__numpy_file__"]]))
            assert list(frames.shape) == sample["trajectory"]["frames_shape"]
            traces.append((frames.mean((1, 2, 3)) / 255).tolist())
        self.samples += tuple(sample["trajectory"]["task"] for sample in samples)
        return send(handler, 200, {"outputs_progress": {"progress_pred": traces}})


@pytest.fixture
def server():
    with Server() as server:
        yield server


def test_the_progress_of_the_newest_frame_is_the_reward(server):
    model = vlmrm_gym.Robometer(prompt="open it", base_url=server.url, frames=3).build()
    clips = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 10, 3), dtype=np.uint8)
    np.testing.assert_allclose(model(clips), clips[:, -1].mean((1, 2, 3)) / 255, atol=1e-6)
    assert server.samples == ("open it",) * 5
    model.close()


def test_an_environment_pays_the_change(server):
    reward = vlmrm_gym.Progress(vlmrm_gym.Robometer(prompt="balance", base_url=server.url, frames=4))
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), reward=reward)
    env.reset(seed=0)
    frames = [env.render()]
    for _ in range(4):
        paid = env.step(1)[1]
        frames.append(env.render())
        expected = (frames[-1].mean() - frames[-2].mean()) / 255
        assert paid == pytest.approx(expected, abs=1e-6)
    env.close()


NO_NUMBERS = [b"{}", b"[]", b"no JSON", b"[" * 100_000]
NO_NUMBERS += [
    b'{"outputs_progress": {"progress_pred": [[0.1], %s]}}' % last
    for last in (b"[]", b"[0.5, NaN]", b"[0.5, 1e400]", b'["0.5"]', b"null", b"[true]", b"[0.1], [0.2]")
]


def test_an_answer_that_is_no_number_for_each_clip_is_refused(server):
    model = vlmrm_gym.Robometer(prompt="open it", base_url=server.url, frames=1).build()
    for answer in NO_NUMBERS:
        server.faults.append(lambda handler, answer=answer: send(handler, 200, answer))
        with pytest.raises(InputError, match=r"outputs_progress\.progress_pred, numbers for each of 2 clips"):
            model(np.zeros((2, 1, 8, 8, 3), dtype=np.uint8))
    model.close()


def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_named(server):
    frames = np.full((1, 1, 8, 8, 3), 51, dtype=np.uint8)
    server.faults.append(busy(0.01))
    model = vlmrm_gym.Robometer(prompt="open it", base_url=server.url, frames=1).build()
    assert model(frames).tolist() == pytest.approx([0.2])
    server.faults.append(lambda handler: send(handler, 404, b"no such page"))
    with pytest.raises(InputError, match="after 1 attempts: answered 404: no such page"):
        model(frames)
    model.close()


def test_settings_that_cannot_be_used():
    for settings in ({"base_url": "ftp://x"}, {"frames": 0}, {"timeout": 0}, {"prompt": ""}):
        with pytest.raises(ValueError, match=f"`{next(iter(settings))}` must"):
            vlmrm_gym.Robometer(**{"prompt": "open it", **settings})
