"""An OpenAI-compatible server on the loopback. It answers from the pixels that it is sent: it measures the pole.

It knows nothing of how its answers are read.
"""

import base64
import contextlib
import io
import json
import math
import random
import re
import threading
import time
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image
from poles import measure_angle

KEY = "sk-a-key-that-nobody-else-has-4711"
WORDINGS = ("{n}", "Image {n}", "The {nth} image is closer.", "**Answer: {n}**", "Image {n} is closer than image {m}.")
JUDGEMENTS = ("{w}", "{W}.", "**{W}**", "Answer: {w}", "{W}, by what I see.")
PREAMBLE = "<think>\nImage 1 could be it. Or image 2: 1 or 2?\n</think>\n\n"


class VLMServer:
    """A server; `with VLMServer() as server: server.url`.

    Args:
        logprobs: "tokens", None (there are none), or "refused" (asking for them is an error).
        wordings: Of answers, one after the other; {n} and {nth} is the image that is closer, {m} the other.
        latency: Seconds that each answer takes.
        judgements: Wordings about one image; {w} and {W} is a word or digit.
        measure: From an image to degrees: the lower, the closer.
    """

    def __init__(self, logprobs=None, wordings=WORDINGS, latency=0.0, judgements=JUDGEMENTS, measure=measure_angle):
        self.measure = measure
        self.logprobs, self.wordings, self.latency, self.judgements = logprobs, wordings, latency, judgements
        self.faults = deque()
        """What the next requests get instead: functions of the handler."""
        self.lock, self.requests, self.active, self.most_active = threading.Lock(), 0, 0, 0
        self.asked = Counter()
        """How often each two images were asked about and answered, in this order."""
        self.times, self.keys, self.bodies = [], set(), []

    def __enter__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def do_POST(self):
                server.serve(self)

            def handle(self):
                with contextlib.suppress(ConnectionError):  # of a client that was killed
                    super().handle()

            def log_message(self, format, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self._http.shutdown()
        self._http.server_close()

    def serve(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            self.requests += 1
            self.active += 1
            self.most_active = max(self.most_active, self.active)
            self.times.append(time.monotonic())
            self.keys.add(handler.headers["Authorization"])
            self.bodies.append(body)
            number = self.requests
            fault = self.faults.popleft() if self.faults else None
        try:
            time.sleep(self.latency)
            if fault is not None:
                fault(handler)
            else:
                self.answer(handler, body, number)
        finally:
            with self.lock:
                self.active -= 1

    def answer(self, handler, body, number):
        if body.get("logprobs") and self.logprobs == "refused":
            send(handler, 400, {"error": {"message": "logprobs are not supported by this model"}})
        else:
            send(handler, 200, self.complete(body, number))

    def complete(self, body, number):
        images, texts = read(body["messages"])
        if images:
            angles = [self.measure(image) if image.any() else 180.0 for image in images]  # of black ones, too
            with self.lock:
                self.asked[tuple(image.tobytes() for image in images)] += 1
        else:
            angles = [float(found) for found in re.findall(r"leans by ([\d.]+) degrees", texts)]
        if len(angles) == 1:
            return self.judge(angles[0], texts, bool(body.get("logprobs") and self.logprobs), number)
        assert len(angles) == 2, texts
        if images and "escribe" in texts:
            first, second = angles
            return completion(
                f"In image 1 the pole leans by {first:.2f} degrees, in image 2 it leans by {second:.2f} degrees."
            )
        nearer = 1 + int(angles[1] < angles[0])
        words = {"n": nearer, "m": 3 - nearer, "nth": ("first", "second")[nearer - 1]}
        text = self.wordings[number % len(self.wordings)].format(**words)
        if not (body.get("logprobs") and self.logprobs):
            return completion(text)
        share = 1 / (1 + math.exp(-abs(angles[1] - angles[0]) / 20))
        tops = [(f" {nearer}", 0.75 * share), (str(nearer), 0.25 * share), (str(3 - nearer), 1 - share), ("x", 1e-6)]
        return completion(text, [[piece, tops] for piece in re.findall(r"\s*\S+?(?=\s|\d|\*|$)|\d|\W", text)])

    def judge(self, angle, texts, logprobs, number):
        """How near one pole is to upright: yes or no, or a digit up to the one that the question names last."""
        if tops := re.findall(r"\bto (\d)\b", texts):
            digits, best = range(int(tops[-1]) + 1), nearness(angle) * int(tops[-1])
            weights = {str(digit): math.exp(-2 * abs(digit - best)) for digit in digits}
        else:
            weights = {"yes": nearness(angle), "no": 1 - nearness(angle)}
        total = sum(weights.values())
        (word,) = random.Random(number).choices(list(weights), list(weights.values()))
        text = self.judgements[number % len(self.judgements)].format(w=word, W=word.title())
        if not logprobs:
            return completion(text)
        tops = [(f" {one}", 0.6 * weight / total) for one, weight in weights.items()]
        tops += [(one.title(), 0.4 * weight / total) for one, weight in weights.items()] + [("x", 1e-6)]
        return completion(text, [[piece, tops] for piece in re.findall(r"\s*\w+|\W", text)])


def nearness(angle):
    """From an angle in degrees to a probability that the pole is upright."""
    return 1 / (1 + math.exp((angle - 30) / 10))


def read(messages):
    """The images of messages, and their texts."""
    images, texts = [], []
    for message in messages:
        parts = message["content"]
        for part in [{"type": "text", "text": parts}] if isinstance(parts, str) else parts:
            if part["type"] == "text":
                texts.append(part["text"])
            else:
                kind, _, data = part["image_url"]["url"].partition(";base64,")
                assert kind == "data:image/png"
                images.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")))
    return images, "\n".join(texts)


def completion(text, tokens=None, **message):
    logprobs = None
    if tokens is not None:
        content = [
            {"token": piece, "logprob": -0.1, "bytes": None,
             "top_logprobs": [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in tops]}
            for piece, tops in tokens
        ]  # fmt: skip
        logprobs = {"content": content}
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "logprobs": logprobs}
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": "pole-gauge-1",
        "choices": [choice | {"finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }  # fmt: skip


def chat(content, places=None, **choice):
    """A completion whose tokens are all said: each (token, its probability, [(other token, its probability)...]).

    A token is a text, or (text, bytes); a probability is a number from 0 to 1, or {"logprob": anything}; in place of
    the others may be anything that JSON can hold.
    """

    def token_of(one, probability):
        text, encoded = one if isinstance(one, tuple) else (one, None)
        logprob = probability if isinstance(probability, dict) else {"logprob": math.log(probability)}
        return {"token": text, "bytes": None if encoded is None else list(encoded), **logprob}

    answer = completion(content)
    if places is not None:
        tokens = [
            token_of(one, share)
            | {"top_logprobs": [token_of(*other) for other in others] if isinstance(others, list) else others}
            for one, share, others in places
        ]
        choice = {"logprobs": {"content": tokens}} | choice
    answer["choices"][0] |= choice
    return answer


def send(handler, status, body, headers=()):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": len(data), **dict(headers)}.items():
        handler.send_header(name, str(value))
    handler.end_headers()
    handler.wfile.write(data)


def busy(seconds):
    """A fault: 429 with `Retry-After`."""
    return lambda handler: send(handler, 429, {"error": {"message": "busy"}}, {"Retry-After": seconds})


def status(code, message="out of order"):
    return lambda handler: send(handler, code, {"error": {"message": message}})


def body(data, **headers):
    """A fault: 200 with some other body."""
    return lambda handler: send(handler, 200, data, headers)
