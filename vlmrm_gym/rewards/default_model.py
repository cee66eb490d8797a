"""The model of rewards that name none: the bundled one for the scenes that it knows, else a small published CLIP."""

from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv

from vlmrm_gym._util.terminal import say_once
from vlmrm_gym.infos import SCENE_KEY

PUBLISHED = "ViT-B-32/laion2b_s34b_b79k"
_ORIGINALS = ("CartPole-v1", "MountainCarContinuous-v0", "Humanoid-v4", "Humanoid-v5")
"""Gymnasium's IDs of the scenes that the bundled model knows."""


def default_model(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | None = None) -> str:
    """The model for an environment: "tiny" for this package's own and their originals, else `PUBLISHED`.

    Of environments in other processes, their metadata or spec say what they are. None: that is not known.
    """
    base: Any = None if env is None else env.unwrapped
    every = [one.unwrapped for one in base.envs] if isinstance(base, SyncVectorEnv) else [base]
    return "tiny" if base is not None and all(map(_is_known, every)) else PUBLISHED


def _is_known(base: Any) -> bool:
    path: str = base.metadata.get(SCENE_KEY) or f"{type(base).__module__}:{type(base).__qualname__}"
    specs = [gym.registry[id] for id in _ORIGINALS if id in gym.registry]
    is_original = path in [spec.entry_point for spec in specs] or (base.spec is not None and base.spec.id in _ORIGINALS)
    return is_original or path.startswith("vlmrm_gym.envs.")


def announced(model: str) -> str:
    """A default, of which a line says, once in a process, if it has to be downloaded."""
    if model == PUBLISHED:
        say_once(
            f'`model` is {PUBLISHED} here: the bundled one, "tiny", knows the scenes of this package only. The weights '
            '(605 MB) are downloaded once. Name another model, or "tiny", to do without.'
        )
    return model
