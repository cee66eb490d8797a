"""CLIPReward: the similarity of frames and a prompt as a reward."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
import torch.nn.functional as F

from vlmrm_gym._util.validation import short_repr, truncate
from vlmrm_gym.rewards import tiny
from vlmrm_gym.rewards.clip import TASK_GOALS, CLIPFields, CLIPKeywords, Prompt
from vlmrm_gym.rewards.encoder import FrameEncoder


@dataclass(frozen=True)
class GoalBaseline:
    """R(s) = 1 - 1/2 || alpha proj_L(s) + (1 - alpha) s - g ||^2, with L the line through goal g and baseline b.

    This is equation 3 of VLM-RM. The embeddings of image s, goal g and baseline b are unit vectors. Since g lies on L,
    proj_L(s) - g is the component of s - g along the line's direction u = (g - b) / ||g - b||, and the squared norm
    reduces to two dot products with s:

        R(s) = 1 - (1 - alpha)^2 (1 - s.g) - 1/2 alpha (2 - alpha) (s.u - g.u)^2

    For alpha = 0 it is the cosine similarity of s and g.
    """

    goal: torch.Tensor
    """float32 (D,), a unit vector."""
    direction: torch.Tensor
    """float32 (D,), a unit vector: u; zeros without a baseline."""
    alpha: float
    """Strength of the regularisation, from 0 to 1; 0 without a baseline."""

    @classmethod
    def from_embeddings(cls, goal: torch.Tensor, baseline: torch.Tensor | None, alpha: float) -> "GoalBaseline":
        """Make the head from the unit vectors of goal and baseline, float32 (D,) each, which must differ."""
        if baseline is None:
            return cls(goal, torch.zeros_like(goal), alpha)
        difference = goal - baseline
        length = torch.linalg.vector_norm(difference)
        if length < 1e-3:  # texts that tokenize alike, up to reduced precision
            raise ValueError(
                "`baseline` must differ from `prompt`: the model reads both as the same. Describe, or show, the scene "
                "without the goal."
            )
        return cls(goal, difference / length, alpha)

    def cpu(self) -> "GoalBaseline":
        """The same head on the CPU."""
        return GoalBaseline(self.goal.cpu(), self.direction.cpu(), self.alpha)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Rewards of image embeddings, unit vectors: float32 (B, D) to (B,); (B, V, D) to the lowest of V views."""
        if features.ndim == 3:
            return self(features.flatten(0, 1)).reshape(features.shape[:2]).amin(1)
        goal, direction = self.goal.to(features.device), self.direction.to(features.device)
        cosine = features @ goal
        if self.alpha == 0:
            return cosine
        along = features @ direction - goal @ direction
        return 1 - (1 - self.alpha) ** 2 * (1 - cosine) - 0.5 * self.alpha * (2 - self.alpha) * along**2


class CLIPReward(FrameEncoder):
    """Scores how well frames match a prompt, by a vision-language model (VLM-RM, arXiv 2310.12921, equation 3).

    >>> import gymnasium as gym, numpy as np
    >>> env = gym.make("CartPole-v1", render_mode="rgb_array")
    >>> observation, info = env.reset(seed=0)
    >>> reward = CLIPReward("tiny", prompt="pole vertically upright on top of the cart")
    >>> reward(np.stack([env.render(), env.render()])).shape
    (2,)

    The model "tiny" is bundled and was trained on the scenes of this package: good for trying things out, no evidence
    of zero-shot ability. It warns, once, of prompts and of frames that are unlike those of its scenes. Environments
    choose it for these; here, where nothing is known of the frames, the default is "ViT-B-32/laion2b_s34b_b79k".

    The image tower (`encode`) is expensive and does not depend on the prompt; the reward is a cheap function of its
    features (`head`): `reward(frames)` is `reward.head(reward.encode(frames))`. Features can be kept and scored with
    the heads of other prompts.

    Args:
        model: The vision-language model; `CLIP.model` lists the forms. Loaded once per process.
        prompt: The goal: a text or a list of texts; or pass `goal_images`, or both.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps".
        options: The other fields of `CLIP`, such as `baseline` and `alpha`.

    Attributes:
        model: The `VisionLanguageModel`.

    Raises:
        TypeError: A prompt is not a text or a list of texts, or there is neither a prompt nor goal images.
        ValueError: A parameter is out of its range; the message names it.
        FileNotFoundError: The checkpoint does not exist.
        RuntimeError: The weights cannot be downloaded.
    """

    def __init__(
        self,
        model: str | None = CLIPFields.model,
        *,
        prompt: Prompt | None = None,
        device: str = "auto",
        **options: Unpack[CLIPKeywords],
    ) -> None:
        given = CLIPFields(model=model, prompt=prompt, **options)
        super().__init__(given, device)
        if given.goal_images == TASK_GOALS:
            raise ValueError(
                f"`goal_images`={TASK_GOALS!r} is for environments of registered tasks whose goals are known. Pass "
                "files of pictures, or uint8 arrays."
            )
        texts = self._texts("prompt", prompt)
        goal = _mean([*texts, *self._pictures(given.goal_images)])
        baseline = [*self._texts("baseline", given.baseline), *self._pictures(given.baseline_images)]
        self._head = GoalBaseline.from_embeddings(goal, _mean(baseline) if baseline else None, given.alpha)
        self.feature_size = len(goal)
        if self.model.name == "tiny" and len(texts) and not tiny.in_domain(_mean([*texts])):
            warnings.warn(tiny.OUT_OF_DOMAIN.format(prompt=prompt), stacklevel=2)

    @property
    def head(self) -> GoalBaseline:  # pyright: ignore[reportIncompatibleVariableOverride]
        """From unit vectors, float32 (B, D) or (B, 1, D), to rewards, float32 (B,)."""
        return self._head

    def _texts(self, parameter: str, prompt: Prompt | None) -> Sequence[torch.Tensor]:
        """The embeddings of texts, unit vectors, float32 (D,) each."""
        texts = [prompt] if isinstance(prompt, str) else list(prompt or ())
        if texts and self.model.tokenizer is None:
            rule = f"`{parameter}` is not for a model that was learned from videos, and knows no texts"
            raise ValueError(f"{rule}. Received {short_repr(prompt)}. Pass pictures, or another model.")
        for text in texts:
            tokens, limit = self.model.count_tokens(text), self.model.tokenizer.context_length
            if tokens > limit:
                raise ValueError(
                    f"`{parameter}` must have at most {limit} tokens for {self.model.name!r}. "
                    f"Received {tokens} tokens: {short_repr(truncate(text, 60))}. Shorten it."
                )
        return list(self.model.encode_text(texts)) if texts else []

    def _pictures(self, pictures: Any) -> Sequence[torch.Tensor]:
        """The embeddings of `Picture`s, unit vectors, float32 (D,) each."""
        return [F.normalize(self.encode(picture.frame[None])[0], dim=0) for picture in pictures or ()]


def _mean(embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
    """The normalised mean of unit vectors: float32 (D,)."""
    return F.normalize(torch.stack(list(embeddings)).mean(0), dim=0)
