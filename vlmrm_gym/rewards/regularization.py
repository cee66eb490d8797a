"""Goal-baseline regularisation: from image embeddings to rewards (VLM-RM, arXiv 2310.12921, equation 3)."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class GoalBaseline:
    """R(s) = 1 - 1/2 || alpha proj_L(s) + (1 - alpha) s - g ||^2, with L the line through goal g and baseline b.

    This is equation 3 of VLM-RM. The embeddings of image s, goal g and baseline b are unit vectors. Since g lies on L,
    proj_L(s) - g is the component of s - g along the line's direction u = (g - b) / ||g - b||, and the squared norm
    reduces to two dot products with s:

        R(s) = 1 - (1 - alpha)^2 (1 - s.g) - 1/2 alpha (2 - alpha) (s.u - g.u)^2

    For alpha = 0 it is the cosine similarity of s and g.

    Attributes:
        goal: float32 (D,), a unit vector.
        direction: float32 (D,), a unit vector: u; zeros without a baseline.
        alpha: Strength of the regularisation, from 0 to 1; 0 without a baseline.
    """

    goal: torch.Tensor
    direction: torch.Tensor
    alpha: float

    @classmethod
    def from_embeddings(cls, goal: torch.Tensor, baseline: torch.Tensor | None, alpha: float) -> "GoalBaseline":
        """Make the head from the unit vectors of goal and baseline, float32 (D,) each.

        Raises:
            ValueError: Goal and baseline are the same point, which defines no line.
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

    def cpu(self) -> "GoalBaseline":
        """The same head on the CPU."""
        return GoalBaseline(self.goal.cpu(), self.direction.cpu(), self.alpha)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Rewards of image embeddings, unit vectors: float32 (B, D) to (B,); (B, V, D) to the lowest of V views."""
        if features.ndim == 3:
            return self(features.flatten(0, 1)).reshape(features.shape[:2]).amin(1)
        cosine = features @ self.goal
        if self.alpha == 0:
            return cosine
        along = features @ self.direction - self.goal @ self.direction
        return 1 - (1 - self.alpha) ** 2 * (1 - cosine) - 0.5 * self.alpha * (2 - self.alpha) * along**2
