"""The fields that all learned rewards have. Imports no torch."""

from dataclasses import dataclass, field, fields
from typing import Any

from vlmrm_gym.rewards.clip_options import CLIPFields, Precision, ResizeMode, check_words
from vlmrm_gym.validation import short_repr


def _text_or_none(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"`{name}` must be a text. Received {short_repr(value)}.")
    if value is not None and not value.strip():
        raise ValueError(f"`{name}` must not be empty. Received {short_repr(value)}.")
    return value


def _prompt_or_none(name: str, value: Any) -> str | None:
    if (text := _text_or_none(name, value)) is not None:
        check_words(name, text)
    return text


_CLIP = CLIPFields.__dataclass_fields__


@dataclass(frozen=True, kw_only=True)
class LearnedFields:
    """What describes a reward whose head is learned, on the features of a frozen image tower.

    Each field of a subclass has a check in its metadata.

    Raises:
        TypeError: A text is something else.
        ValueError: A value is out of its range, or there is neither a prompt nor a head; the message names the field.
    """

    prompt: str | None = field(default=None, metadata={"check": _prompt_or_none})
    """The goal. Not needed with a `head`."""
    model: str | None = field(default=None, metadata=_CLIP["model"].metadata)
    """The vision-language model whose image tower makes the features; see `CLIP`."""
    precision: Precision = field(default="auto", metadata=_CLIP["precision"].metadata)
    """"auto", "fp32", "bf16" or "fp16"; auto is fp32 on the CPU and fp16 on CUDA."""
    resize_mode: ResizeMode | None = field(default=None, metadata=_CLIP["resize_mode"].metadata)
    """How a frame gets the model's input size; see `CLIP`."""
    batch_size: int | None = field(default=None, metadata=_CLIP["batch_size"].metadata)
    """Maximum number of frames encoded at once; None chooses. It does not affect rewards."""
    head: str | None = field(default=None, metadata={"check": _text_or_none})
    """File of a head that has been learned: the fields that describe the head are then the file's. None: it is
    learned."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.init:
                object.__setattr__(self, one.name, one.metadata["check"](one.name, getattr(self, one.name)))
        if self.prompt is None and self.head is None:
            raise ValueError(
                "`prompt` must be a text, or `head` the file of a head that has been learned. Received neither. Say "
                "what the agent should do."
            )

    @property
    def learns(self) -> bool:
        """Whether the head is yet to be learned: the environments must keep what it is learned from."""
        return self.head is None

    @property
    def encoder(self) -> dict[str, Any]:
        """The fields that say how features are made, as keyword arguments of `FrameEncoder`."""
        return {name: getattr(self, name) for name in ("model", "precision", "resize_mode", "batch_size")}
