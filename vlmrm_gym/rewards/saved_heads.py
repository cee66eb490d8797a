"""Heads that are learned: their files, and the model that scores frames by one."""

import json
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from vlmrm_gym.files import atomic_write
from vlmrm_gym.rewards.base import Rewards, encode_frames
from vlmrm_gym.rewards.encoder import FrameEncoder
from vlmrm_gym.rewards.heads import apply_head, check_fingerprint
from vlmrm_gym.untrusted import parse_json, read_file
from vlmrm_gym.validation import truncate

MAX_BYTES = 2**28
"""Size of a head's file, at most."""


class SavedHead(torch.nn.Module):
    """A head with a file: safetensors, with what else is known of it as JSON in its metadata."""

    key: ClassVar[str]
    """Of the JSON in the metadata."""
    arguments: ClassVar[tuple[str, ...]]
    """The arguments of the constructor that a file keeps; attributes have the same names."""
    fingerprint: str
    """Of the features; see `RewardModel`."""
    prompt: str | None
    """The goal."""

    def to_bytes(self) -> bytes:
        """The file's content."""
        known = {name: getattr(self, name) for name in self.arguments}
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.state_dict().items()}
        return save(tensors, {self.key: json.dumps(known)})  # one entry: the order of several is not fixed

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "`content`") -> Self:
        """The head of a file's content.

        Args:
            content: What `to_bytes` returned.
            name: What it is, for messages.

        Raises:
            ValueError: It is something else, or damaged.
        """
        try:
            header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
            with torch.device("meta"):  # what the file says of sizes is not allocated
                head = cls(**parse_json(header["__metadata__"][cls.key]))
            if not isinstance(head.fingerprint, str) or not isinstance(head.prompt, str | None):
                raise TypeError("its fingerprint and its prompt must be texts")
            tensors = load(content)
            if odd := [name for name, one in tensors.items() if not one.numel() or one.dtype != torch.float32]:
                raise ValueError(f"`{odd[0]}` must be numbers in float32, at least one")
            if odd := [name for name, one in tensors.items() if not one.isfinite().all()]:
                raise ValueError(f"`{odd[0]}` must be finite")
            head.load_state_dict(tensors, assign=True)
        except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
            raise ValueError(
                f"{name} must be a head that {cls.__name__}.save wrote. Received another: {truncate(str(error))}."
            ) from error
        return head.requires_grad_(False)

    def save(self, path: str | Path) -> None:
        """Write the head to a file, atomically: the specification with `head=path` is then a frozen reward."""
        content = self.to_bytes()
        atomic_write(Path(path), lambda unfinished: unfinished.write_bytes(content))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a head from a file.

        Raises:
            FileNotFoundError: It does not exist.
            ValueError: It is something else, or damaged.
        """
        if not Path(path).exists():
            raise FileNotFoundError(f"`head` must be the file of a head. Received {str(path)!r}, which does not exist.")
        return cls.from_bytes(read_file(path, MAX_BYTES), f"`head` {str(path)!r}")


class HeadReward(FrameEncoder):
    """Scores states by a head on the features of all of their views.

    Args:
        model: The vision-language model; see `CLIP`.
        head: The head; None: there is none yet.
        device: Where the image tower runs.
        options: The other arguments of `FrameEncoder`.

    Attributes:
        head: The head, on the CPU; None: there is none yet.
        feature_size: Width of the embeddings, D.

    Raises:
        ValueError: The head is of other features; and as `FrameEncoder`.
    """

    multi_view = True

    def __init__(
        self, model: str | None, *, head: SavedHead | None = None, device: str = "auto", **options: Any
    ) -> None:
        super().__init__(model, device, **options)
        self.head = head
        self.feature_size = self.model.encode_text(["a frame"]).shape[1]
        if head is not None:
            check_fingerprint(head, self.fingerprint)

    def __call__(self, frames: NDArray[np.uint8]) -> Rewards:
        """Score states: frames uint8 (B, V, H, W, 3) of V views, to rewards, float32 (B,).

        Raises:
            RuntimeError: There is no head yet.
            ValueError: The head is of another number of views.
        """
        if self.head is None:
            raise RuntimeError("The reward has no head yet: it is learned from comparisons. Pass `head`, its file.")
        features = encode_frames(self, frames.reshape(-1, *frames.shape[2:])).cpu().numpy()
        return apply_head(self.head, features.reshape(*frames.shape[:2], -1))
