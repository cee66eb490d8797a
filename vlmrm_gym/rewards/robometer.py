"""A server of a progress model that speaks Robometer's protocol, as a reward. Imports no torch."""

import io
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.validation import check_seconds, check_size, is_finite, short_repr, truncate
from vlmrm_gym.rewards.clip import check_count, check_prompt, integer
from vlmrm_gym.rewards.endpoint.reply import RequestFailed, Response, read_error
from vlmrm_gym.rewards.endpoint.settings import check_address
from vlmrm_gym.rewards.model import Features, RewardModel, fixed_size
from vlmrm_gym.rewards.spec import RewardSpec


@dataclass(frozen=True, kw_only=True)
class Robometer(RewardSpec):
    """Asks a server how much of a task the episode so far has done, from 0 to 1: Robometer (arXiv 2603.02115) and kin.

    The server answers `POST /evaluate_batch_npy` as Robometer's evaluation server does. Pay the change: `Progress`.

    >>> import vlmrm_gym
    >>> reward = vlmrm_gym.Progress(vlmrm_gym.Robometer(prompt="open the drawer", base_url="http://127.0.0.1:8000"))

    Raises:
        TypeError: A text is something else.
        ValueError: A value is out of its range; the message names the field.
    """

    prompt: str = field(metadata={"check": check_prompt})
    """The task."""
    base_url: str = field(default="http://127.0.0.1:8000", metadata={"check": check_address})
    """Address of the server."""
    frames: int = field(default=8, metadata={"check": check_count})
    """Frames of the episode so far: its first, its newest, and others at equal distances."""
    size: tuple[int, int] | None = field(default=None, metadata={"check": check_size})
    """Height and width at which states are drawn, in pixels; None: the environment's own."""
    batch_size: int = field(default=8, metadata={"check": check_count})
    """Clips of a request."""
    timeout: float = field(default=120.0, metadata={"check": check_seconds})
    """Seconds that a request may take."""
    retries: int = field(default=5, metadata={"check": integer(0, 1_000)})
    """How often a failed request is repeated, after longer and longer pauses."""
    kind: str = field(default="robometer", init=False)

    def build(self, device: str = "auto") -> RewardModel:
        """Open the connection; asks nothing yet. Raises DependencyNotInstalled without the package `httpcore2`."""
        return RobometerReward(self)


class RobometerReward(RewardModel):
    """Scores the episode so far by asking the server."""

    feature_size = 1
    clip = "prefix"

    def __init__(self, spec: Robometer) -> None:
        from vlmrm_gym.rewards.endpoint.connection import Connection

        self._spec, self.batch_size, self.clip_length = spec, spec.batch_size, spec.frames
        self.render_size = fixed_size(spec.size)
        self._connection = Connection(f"{spec.base_url.rstrip('/')}/evaluate_batch_npy", spec.timeout)
        self._server = f"The server at {spec.base_url}"

    def encode(self, frames: NDArray[np.uint8]) -> Features:
        """Ask about clips, uint8 (B, F, H, W, 3): progress, float32 (B, 1). An `InputError` if there is no answer."""
        clips = frames if frames.ndim == 5 else frames[:, None]
        kind, body = pack(clips, self._spec.prompt)
        try:
            answer = self._connection.ask(
                {"Content-Type": kind}, body, _read, lambda count: count <= self._spec.retries
            )
        except RequestFailed as failure:
            what = f"could not be asked after {failure.attempts} attempts: {failure}"
            raise InputError(f"{self._server} {what}.") from failure
        try:
            traces = json.loads(answer)["outputs_progress"]["progress_pred"]
            newest = [trace[-1] if isinstance(trace, list) else trace for trace in traces]
        except (ValueError, LookupError, TypeError, RecursionError):
            newest = []
        if len(newest) != len(clips) or not all(map(is_finite, newest)):
            received = short_repr(truncate(answer.decode(errors="replace"), 200))
            rule = f"must answer with outputs_progress.progress_pred, numbers for each of {len(clips)} clips"
            raise InputError(f"{self._server} {rule}. Received {received}.")
        return np.array(newest, dtype=np.float32)[:, None]

    def close(self) -> None:
        """End the connections."""
        self._connection.close()


def _read(response: Response) -> bytes:
    if response.status != 200:
        raise read_error(response.status, response)
    return response.body


def pack(clips: NDArray[np.uint8], task: str) -> tuple[str, bytes]:
    """Make the request about clips, uint8 (B, F, H, W, 3): its content type, and a form with an NPY file for each."""
    mark, parts = uuid.uuid4().hex, list[bytes]()

    def add(name: str, content: bytes, more: str = "") -> None:
        head = f'--{mark}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
        parts.extend([head.encode(), content, b"\r\n"])

    for number, clip in enumerate(clips):
        name = f"sample_{number}_trajectory_frames"
        trajectory: dict[str, Any] = {"frames": {"__numpy_file__": name}, "frames_shape": clip.shape, "task": task}
        trajectory |= {"id": str(number), "metadata": {"subsequence_length": len(clip)}, "video_embeddings": None}
        add(f"sample_{number}", json.dumps({"sample_type": "progress", "trajectory": trajectory}).encode())
        file = io.BytesIO()
        np.save(file, np.ascontiguousarray(clip))
        add(name, file.getvalue(), f'; filename="{name}.npy"\r\nContent-Type: application/octet-stream')
    add("use_frame_steps", b"false")
    return f"multipart/form-data; boundary={mark}", b"".join([*parts, f"--{mark}--\r\n".encode()])
