"""Aliases of keys: the words of the published VLM-RM code, and short flags."""

from collections.abc import Mapping

LEGACY_NAMES: Mapping[str, str] = {
    "CartPole-v1": "VLMRM/CartPole-v1",
    "MountainCarContinuous-v0": "VLMRM/MountainCarContinuous-v0",
    "Humanoid-v4": "VLMRM/Humanoid-v0",
}
"""Environment names of the published code, and their IDs here."""

ALIASES: Mapping[str, str] = {
    "target_prompts": "prompt",
    "baseline_prompts": "baseline",
    "pretrained_model": "model",
    "camera_config": "camera",
    "reward": "name",
    "reward_kwargs": "kwargs",
}
"""Words of the published format in `reward`, and of Python, in files and flags, and the keys here."""

REMOVED: Mapping[str, str] = {
    "reward.score_tolerance": "was removed. Use score_every.",
    "preferences.exploration": "was removed: before the first head actions are random. Leave it out.",
}
"""Keys of configurations that have been taken out, and what their error says."""

FLAGS: Mapping[str, str] = {
    **{name: f"reward.{name}" for name in ("prompt", "baseline", "alpha", "model", "camera", "labeler")},
    "reward": "reward.name",
    "reward_kwargs": "reward.kwargs",
    **{f"reward.{word}": f"reward.{name}" for word, name in ALIASES.items()},
}
"""Short flags, and those of the published format's words, with the keys that they stand for."""
