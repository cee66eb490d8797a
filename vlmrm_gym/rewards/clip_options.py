"""Types and validation of the options of CLIP rewards. Imports no torch."""

from collections.abc import Sequence
from typing import Literal, get_args

from vlmrm_gym.validation import check_choice, check_fraction, check_positive_integer

Prompt = str | Sequence[str]
"""A text, or several whose embeddings are averaged."""
Precision = Literal["auto", "fp32", "bf16", "fp16"]
ResizeMode = Literal["squash", "shortest", "longest"]


def check_clip_options(
    *,
    prompt: Prompt,
    baseline: Prompt | None,
    alpha: float,
    model: str,
    precision: Precision,
    resize_mode: ResizeMode | None,
    batch_size: int | None,
) -> None:
    """Check what can be checked without loading a model.

    Raises:
        TypeError: A prompt or model name is not a string.
        ValueError: A value is out of its range; the message names the parameter.
    """
    prompts = _texts("prompt", prompt)
    baselines = None if baseline is None else _texts("baseline", baseline)
    _check_alpha(alpha, baselines)
    if baselines is not None and set(baselines) == set(prompts):
        raise ValueError(
            f"`baseline` must differ from `prompt`. Received {baseline!r} for both. "
            "Describe the scene without the goal, or pass baseline=None."
        )
    if not isinstance(model, str):
        raise TypeError(f'`model` must be a string, such as "tiny". Received {model!r}.')
    check_choice("precision", precision, get_args(Precision))
    if resize_mode not in (None, *get_args(ResizeMode)):
        modes = ", ".join(get_args(ResizeMode))
        raise ValueError(f"`resize_mode` must be None or one of {modes}. Received {resize_mode!r}.")
    if batch_size is not None:
        check_positive_integer("batch_size", batch_size)


def _texts(parameter: str, value: Prompt) -> list[str]:
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, Sequence) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"`{parameter}` must be a text or a list of texts. Received {value!r}.")
    if not texts or not all(text.strip() for text in texts):
        raise ValueError(f"`{parameter}` must not be empty. Received {value!r}. Say what should be seen.")
    return texts


def _check_alpha(alpha: float, baseline: object) -> None:
    check_fraction("alpha", alpha)
    if alpha > 0 and baseline is None:
        raise ValueError(
            "`alpha` above 0 needs a `baseline`: the scene without the goal. "
            f"Received alpha={alpha!r} and baseline=None."
        )
