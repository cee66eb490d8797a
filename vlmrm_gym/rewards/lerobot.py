"""Reward models of LeRobot as rewards of environments. Imports no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.rewards.clip import check_count, check_prompt, check_text, optional
from vlmrm_gym.rewards.model import Features, RewardModel
from vlmrm_gym.rewards.spec import RewardSpec


@dataclass(frozen=True, kw_only=True)
class LeRobot(RewardSpec):
    """Asks a reward model of LeRobot: a success classifier, Robometer, TOPReward, or one of a plugin's.

    The models of progress see the episode so far (`frames` of it): wrap those in `Progress`, which pays the change. A
    model that needs more than images and the task's text, as SARM needs its place in a dataset, raises LeRobot's error.

    >>> import vlmrm_gym
    >>> reward = vlmrm_gym.Progress(vlmrm_gym.LeRobot(model="lerobot/Robometer-4B", prompt="pick up the cube"))

    Raises:
        TypeError: A text is something else.
        ValueError: A value is out of its range; the message names the field.
    """

    model: str = field(metadata={"check": check_text})
    """A folder that LeRobot has written, or a name on Hugging Face's hub. Loading it may run code that it names."""
    prompt: str | None = field(default=None, metadata={"check": optional(check_prompt)})
    """The task, for models that read it."""
    revision: str | None = field(default=None, metadata={"check": optional(check_text)})
    """Commit, branch or tag on the hub."""
    image_key: str | None = field(default=None, metadata={"check": optional(check_text)})
    """Where the model looks for frames, such as "observation.images.top"; None: where its settings say."""
    frames: int | None = field(default=None, metadata={"check": optional(check_count)})
    """Frames of the episode so far; None: the most that the model's settings allow, or else 1, the newest."""
    kind: str = field(default="lerobot", init=False)

    def build(self, device: str = "auto") -> RewardModel:
        """Load the model. Raises DependencyNotInstalled without a LeRobot that has reward models."""
        return LeRobotReward(self, device)


class LeRobotReward(RewardModel):
    """Scores the newest frame, or the episode so far, by `compute_reward` of a model of LeRobot."""

    feature_size = 1
    batch_size = 8

    def __init__(self, spec: LeRobot, device: str = "auto") -> None:
        try:
            from lerobot.configs.rewards import RewardModelConfig  # pyright: ignore[reportMissingImports]
            from lerobot.processor import PolicyProcessorPipeline  # pyright: ignore[reportMissingImports]
            from lerobot.rewards import factory  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise DependencyNotInstalled(
                f"LeRobot 0.6 or newer, which has lerobot.rewards, must be installed: pip install lerobot. {error}."
            ) from error
        from vlmrm_gym.rewards.devices import resolve_device

        folder = spec.model
        if not Path(folder).is_dir():
            from huggingface_hub import snapshot_download

            folder = snapshot_download(folder, revision=spec.revision)
        config: Any = RewardModelConfig.from_pretrained(folder)
        config.device, config.pretrained_path = str(resolve_device(device)), folder
        model: Any = factory.make_reward_model(config).eval()
        self._compute = model.compute_reward
        saved = sorted(Path(folder).glob("*preprocessor.json"))
        if saved:
            device_step = {"device_processor": {"device": config.device}}
            self._prepare: Any = PolicyProcessorPipeline.from_pretrained(
                folder, config_filename=saved[0].name, overrides=device_step
            )
        else:
            self._prepare, _ = factory.make_reward_pre_post_processors(config)
        own = vars(config).get("image_key")
        names = [own] if own else [name for name in config.input_features if name.startswith("observation.image")]
        if spec.image_key is None and len(names) != 1:
            rule = "must be given, where a model's settings do not name one image"
            raise InputError(f"`image_key` {rule}. They name {short_repr(names)}.")
        self._key, self._prompt = spec.image_key or names[0], spec.prompt
        self.clip, self.clip_length = "prefix", spec.frames or vars(config).get("max_frames") or 1

    def encode(self, frames: NDArray[np.uint8]) -> Features:
        """Ask about frames, uint8 (B, H, W, 3), or the episode so far, (B, F, H, W, 3): float32 (B, 1)."""
        import torch

        seen = torch.from_numpy(np.ascontiguousarray(np.moveaxis(frames, -1, -3))).float() / 255
        batch = {self._key: seen} | ({} if self._prompt is None else {"task": [self._prompt] * len(frames)})
        with torch.no_grad():
            return self._compute(self._prepare(batch)).reshape(-1, 1).float().cpu().numpy()
