"""Networks that are heads, and their files: safetensors, which hold numbers and a short text, and run nothing."""

import json
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from vlmrm_gym._util.files import atomic_write
from vlmrm_gym._util.untrusted import parse_json, read_file
from vlmrm_gym._util.validation import truncate
from vlmrm_gym.rewards.saved import MAX_HEAD, head_file


class SavedHead(torch.nn.Module):
    """Base class of networks that a file keeps: weights, and the arguments of the constructor."""

    key: str
    """Of the JSON in a file's metadata."""
    arguments: tuple[str, ...]
    """The arguments of the constructor that a file keeps; attributes have the same names."""
    fingerprint: str
    """Of the features; see `RewardModel`."""
    feature_mean: torch.Tensor
    feature_scale: torch.Tensor

    def check(self) -> None:
        """Raise a TypeError or ValueError if the arguments, as a file has them, cannot be."""
        if not isinstance(self.fingerprint, str):
            raise TypeError("its fingerprint must be a text")

    @torch.no_grad()
    def scale_features(self, features: torch.Tensor) -> None:
        """Centre the input on these features, float32 (N, D) or (N, V, D), with unit variance over all of D."""
        flat = features.flatten(1)
        self.feature_mean.copy_(flat.mean(0))
        self.feature_scale.copy_((flat - self.feature_mean).square().mean().sqrt().clamp_min(1e-6))

    def to_bytes(self) -> bytes:
        """The file's content: safetensors, with the constructor's arguments as JSON in the metadata."""
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.state_dict().items()}
        # One entry of metadata: the order of several is not fixed.
        return save(tensors, {self.key: json.dumps({name: getattr(self, name) for name in self.arguments})})

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "`content`") -> Self:
        """The head of what `to_bytes` returned. Raise a ValueError, in which it has this name, of anything else."""
        try:
            header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
            with torch.device("meta"):  # what the file says of sizes is not allocated
                head = cls(**parse_json(header["__metadata__"][cls.key]))
            head.check()
            tensors = load(content)
            for key, tensor in tensors.items():
                if not tensor.numel() or tensor.dtype != torch.float32:
                    raise ValueError(f"`{key}` must be numbers in float32, at least one")
                if not tensor.isfinite().all():
                    raise ValueError(f"`{key}` must be finite")
            head.load_state_dict(tensors, assign=True)
        except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
            raise ValueError(
                f"{name} must be a head that {cls.__name__}.save wrote. Received another: {truncate(str(error))}."
            ) from error
        return head.requires_grad_(False)

    def save(self, path: str | Path) -> None:
        """Write the head to a file, atomically."""
        content = self.to_bytes()
        atomic_write(Path(path), lambda unfinished: unfinished.write_bytes(content))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a head from a file, or a reward's folder. A FileNotFoundError without one, a ValueError for others."""
        file = head_file(path)
        if not file.exists():
            raise FileNotFoundError(f"`head` must be the file of a head. Received {str(path)!r}, which does not exist.")
        return cls.from_bytes(read_file(file, MAX_HEAD), f"`head` {str(path)!r}")
