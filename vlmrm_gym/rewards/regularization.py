"""Goal-baseline regularisation: how an image embedding becomes a reward (VLM-RM, arXiv 2310.12921, equation 3)."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class GoalBaseline:
    """R(s) = 1 - 1/2 || alpha proj_L(s) + (1 - alpha) s - g ||^2, with L the line through goal g and baseline b.

    Both g and b are unit vectors, and so is every s. Since g lies on L, proj_L(s) - g is the part of s - g along the
    line's direction u = (g - b) / ||g - b||, and the square falls apart into two dot products with s:

        R(s) = 1 - (1 - alpha)^2 (1 - s.g) - 1/2 alpha (2 - alpha) (s.u - g.u)^2

    With alpha = 0 this is the cosine similarity of s and g.

    Attributes:
        goal: float32 (D,), a unit vector.
        direction: float32 (D,), a unit vector: u; zeros without a baseline.
        alpha: Strength of the regularisation, from 0 to 1; 0 without a baseline.
    """

    goal: torch.Tensor
    direction: torch.Tensor
    alpha: float

    @classmethod
    def between(cls, goal: torch.Tensor, baseline: torch.Tensor | None, alpha: float) -> "GoalBaseline":
        """Build from the unit vectors of goal and baseline, float32 (D,) each.

        Raises:
            ValueError: The two are the same point, so that no line goes through them.
        """
        if baseline is None:
            return cls(goal, torch.zeros_like(goal), alpha)
        difference = goal - baseline
        length = torch.linalg.vector_norm(difference)
        if length < 1e-3:  # texts that tokenize alike, up to reduced precision
            raise ValueError(
                "`baseline` must differ from `prompt`: the model reads both as the same text. "
                "Describe the scene without the goal."
            )
        return cls(goal, difference / length, alpha)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Rewards of images: float32 (B, D), unit vectors, to float32 (B,)."""
        cosine = images @ self.goal
        if self.alpha == 0:
            return cosine
        along = images @ self.direction - self.goal @ self.direction
        return 1 - (1 - self.alpha) ** 2 * (1 - cosine) - 0.5 * self.alpha * (2 - self.alpha) * along**2
