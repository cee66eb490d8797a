"""`Robometer` asks a server that speaks the protocol of Robometer's evaluation server, which is written here anew."""

import io
import json
import threading
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gymnasium as gym
import numpy as np
import pytest

import vlmrm_gym
from vlmrm_gym import InputError


class Server:
    """Answers with the mean grey of every frame of a clip, from 0 to 1; or with what `faults` has next."""

    def __init__(self):
        self.samples, self.faults = [], []

    def __enter__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = server.answer(self.path, self.headers["Content-Type"], body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path, kind, body):
        if self.faults:
            return self.faults.pop(0)
        assert path == "/evaluate_batch_npy"
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
        self.samples += [sample["trajectory"]["task"] for sample in samples]
        return 200, json.dumps({"outputs_progress": {"progress_pred": traces}}).encode()


@pytest.fixture
def server():
    with Server() as server:
        yield server


def test_the_progress_of_the_newest_frame_is_the_reward(server):
    model = vlmrm_gym.Robometer(prompt="open it", base_url=server.url, frames=3).build()
    clips = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 10, 3), dtype=np.uint8)
    np.testing.assert_allclose(model(clips), clips[:, -1].mean((1, 2, 3)) / 255, atol=1e-6)
    assert server.samples == ["open it"] * 5
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


@pytest.mark.parametrize(
    "answer", [b"{}", b"[]", b"no JSON", b'{"outputs_progress": {"progress_pred": [[0.1]]}}', b"[" * 100_000]
)
def test_an_answer_that_is_no_number_for_each_clip_is_refused(server, answer):
    server.faults.append((200, answer))
    model = vlmrm_gym.Robometer(prompt="open it", base_url=server.url, frames=1).build()
    with pytest.raises(InputError, match=r"must answer with outputs_progress\.progress_pred"):
        model(np.zeros((2, 1, 8, 8, 3), dtype=np.uint8))
    model.close()


@pytest.mark.parametrize("number", [b"NaN", b"1e400", b'"0.5"', b"null", b"true"])
def test_a_progress_that_is_no_number_is_refused(server, number):
    server.faults.append((200, b'{"outputs_progress": {"progress_pred": [[0.5, %s]]}}' % number))
    model = vlmrm_gym.Robometer(prompt="open it", base_url=server.url, frames=2).build()
    with pytest.raises(InputError, match="numbers for each of 1 clips"):
        model(np.zeros((1, 2, 8, 8, 3), dtype=np.uint8))
    model.close()


def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_named(server):
    frames = np.full((1, 1, 8, 8, 3), 51, dtype=np.uint8)
    server.faults.append((503, b"later"))
    model = vlmrm_gym.Robometer(prompt="open it", base_url=server.url, frames=1).build()
    assert model(frames).tolist() == pytest.approx([0.2])
    server.faults.append((404, b"no such page"))
    with pytest.raises(InputError, match="after 1 attempts: answered 404: no such page"):
        model(frames)
    model.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "ftp://x"}, "`base_url` must be an address"),
        ({"frames": 0}, "`frames`"),
        ({"timeout": 0}, "`timeout` must be a positive number"),
        ({"prompt": ""}, "`prompt`"),
    ],
)
def test_settings_that_cannot_be_used(settings, message):
    with pytest.raises(ValueError, match=message):
        vlmrm_gym.Robometer(**{"prompt": "open it", **settings})
