"""The configuration of a training run: a superset of the published VLM-RM code's format.

Settings are declared here, once: tyro makes flags and help of them, and pydantic checks what files and flags say.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field

from vlmrm_gym.rewards.clip import CLIPFields
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.scoring.options import FileOptions
from vlmrm_gym.tasks import REGISTERED, TASKS, Task
from vlmrm_gym.tools.train.config_types import (
    LEGACY_NAMES,
    AlgorithmName,
    Count,
    Flag,
    Fraction,
    Integer,
    LabelerValue,
    Name,
    Section,
    Steps,
    StepsOrNone,
    Texts,
    YAMLMapping,
    with_checks,
)


@dataclass(frozen=True, kw_only=True)
@with_checks
class RewardConfig(FileOptions, CLIPFields, Section):
    """The reward, and how it is scored. Fields of `vlmrm_gym.CLIP` are for `name: clip`; those that `Preference` has,
    also for that.
    """

    name: str = "clip"
    """clip: how well the frame matches the prompt; ground_truth: the environment's own reward; another kind, such as
    preference; a callable, a class of callables or a specification of your own, "package.module:attribute"; or the JSON
    file of a specification"""
    kwargs: YAMLMapping | None = None
    """for a reward other than clip: keyword arguments of the callable or class, or the specification's fields"""
    labeler: LabelerValue | None = None
    """for preference: what answers which of two segments is closer to the goal; its kind or settings, such as
    {kind: ground_truth, mistake_rate: 0.1}, or "package.module:attribute" """
    prompt: Texts | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """the goal: a text or a list of texts (None: the task's)"""
    baseline: Texts | None = None
    """the scene without the goal: a text or a list of texts; required for alpha above 0 (None: the task's)"""
    goal_images: Texts | None = None
    """pictures of the goal, in place of the task's prompt, or beside a prompt that is given: files, which are relative
    to a configuration file that names them; or "task": states of the task's goal"""
    baseline_images: Texts | None = None
    """pictures of the scene without the goal"""
    textured: Flag = True
    """humanoids and mountain car: photo-like scenes, or Gymnasium's"""
    cache_dir: str | None = None
    """where downloaded weights are kept (None: Hugging Face's own cache)"""

    def __post_init__(self) -> None:
        """Leave the checks to the specification."""

    @property
    def is_own(self) -> bool:
        """Whether the reward is of another kind than CLIP, and not the environment's."""
        return self.name not in ("clip", "ground_truth")

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of an environment that say which reward. Not for ground_truth."""
        if not self.is_own:
            return {**self.settings(), "reward_kwargs": self.kwargs}
        default, kwargs = RewardConfig(), dict(self.kwargs or {})
        given = {name: value for name, value in self.settings().items() if value != getattr(default, name)}
        if ":" in self.name:
            return {"reward": self.name, "reward_kwargs": self.kwargs, **given}
        if self.name == "preference":
            for name in [one.name for one in fields(Preference) if one.name in given and one.name not in kwargs]:
                kwargs[name] = given.pop(name)
            if isinstance(prompt := kwargs.get("prompt"), list) and len(prompt) == 1:
                kwargs["prompt"] = prompt[0]
        return {"reward": {**kwargs, "kind": self.name}, **given}


@dataclass(frozen=True, kw_only=True)
class PreferencesConfig(Section):
    """How a reward is learned from the answers of `reward.labeler`."""

    first: Count | None = None
    """steps, over all environments, before the first round (None: rl.learning_starts; for PPO and A2C `every`)"""
    every: Count | None = None
    """steps, over all environments, from one round to the next (None: all are in the first half of the training)"""
    pairs: Count = 50
    """pairs that a round asks about, on average"""
    total: Count = 500
    """pairs of all rounds"""
    schedule: str = "constant"
    """how pairs are divided over rounds: constant, or "package.module:function" """
    segment_length: Count = 1
    """states of a segment, whose rewards add up"""
    sampling: Literal["uniform", "disagreement"] = "disagreement"
    """which pairs are asked about: any, or those about which the networks disagree most"""
    candidates: Count = 10
    """for disagreement: pairs that are compared for each that is asked about"""
    half_life: Count | None = None
    """newer states are preferred: their weight halves with every so many steps that came after (None: all are alike)"""
    fit: YAMLMapping | None = None
    """fields of vlmrm_gym.learning.FitOptions, such as {epochs: 100, l2: 5}"""
    answers: str | None = None
    """file of answers, which runs may share: what is in it is not asked again (None: answers.db in the run's folder)"""

    @property
    def num_rounds(self) -> int:
        """The number of rounds."""
        return -(-self.total // self.pairs)


@dataclass(frozen=True, kw_only=True)
class RLConfig(Section):
    """The algorithm, of Stable-Baselines3; and any keyword argument of its class, such as --rl.learning-rate 3e-4 or
    --rl.policy-kwargs "{net_arch: [256, 256]}". None: the task's default, else Stable-Baselines3's.
    """

    algorithm: AlgorithmName | None = None
    """of Stable-Baselines3 or sb3-contrib"""
    policy_name: Literal["MlpPolicy", "MultiInputPolicy"] | None = None
    """the kind of network (None: MultiInputPolicy for observations that are dictionaries, else MlpPolicy)"""
    n_steps: Steps | None = None
    """steps of the training, summed over all environments"""
    n_envs_per_worker: Count | None = None
    """environments for each worker of the reward; without workers, environments in all"""
    episode_length: Count | None = None
    """steps until an episode is truncated"""
    start_near_goal: Fraction = 0.0
    """humanoid tasks: probability that a training episode starts on the way to the task's pose, a curriculum;
    agents are evaluated from the usual initial state"""
    normalize_observations: Flag | None = None
    """normalise observations by their running mean and standard deviation"""
    device: str = "auto"
    """where the agent learns"""
    learning_starts: StepsOrNone | None = None
    """steps, over all environments, before the first gradient step"""
    train_freq: Count | None = None
    """steps of every environment between updates; PPO and A2C: the length of a rollout"""
    gradient_steps: Annotated[Integer, Field(ge=-1, le=10**9)] | None = None
    """gradient steps in each update (-1: as many as steps, over all environments); PPO: epochs"""
    action_noise: YAMLMapping | None = None
    """{name: NormalActionNoise, mean: 0, sigma: 0.1}, or OrnsteinUhlenbeckActionNoise; or, until learning starts,
    {name: ActionRepeatNoise, sigma: 2, hold: 30}"""
    options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """other keyword arguments of the algorithm's class; in files and flags they are keys of `rl`"""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "RLConfig":
        """The section with these keys, as a file has them."""
        return cls(**nest_options(values))

    @property
    def values(self) -> dict[str, Any]:
        """All keys that are not None, as a file has them."""
        settings = {name: value for name, value in vars(self).items() if value is not None}
        return settings | settings.pop("options")

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the algorithm's class; the other values are for this package."""
        names = ("learning_starts", "train_freq", "gradient_steps", "action_noise", *self.options)
        return {name: value for name, value in self.values.items() if name in names}


def nest_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nest the keys of `rl` that are no fields of `RLConfig` as its `options`."""
    names = RLConfig.__dataclass_fields__.keys() - {"options"}
    settings: dict[str, Any] = {"options": {}}
    for name, value in values.items():
        (settings if name in names else settings["options"])[name] = value
    return settings


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Section):
    """How often to write, in steps over all environments; 0: never."""

    checkpoint_freq: StepsOrNone | None = None
    """checkpoints (None: ten in all)"""
    video_freq: StepsOrNone | None = None
    """videos of the deterministic policy, with its reward drawn in (None: five in all)"""
    tensorboard_freq: StepsOrNone | None = None
    """TensorBoard events (None: a hundred in all)"""


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """The configuration of a training run."""

    env_name: str | None = None
    """a registered ID, such as Ant-v5; module:ID, which imports the module first; or package.module:function;
    Humanoid-v4, CartPole-v1 and MountainCarContinuous-v0 stand for those of this package"""
    env_kwargs: YAMLMapping | None = None
    """keyword arguments of the function, or of another package's ID"""
    base_path: str = "runs"
    """where the run's folder is made"""
    run_name: Name | None = None
    """the folder's name, in base_path (None: environment, algorithm, seed and time)"""
    seed: Annotated[Integer, Field(ge=0, lt=2**32)] = 0
    """of environments and agent"""
    description: str = ""
    """your notes"""
    tags: list[str] = field(default_factory=list)
    """tags for Weights and Biases"""
    track: Flag = False
    """log to Weights and Biases, too (`pip install "vlmrm-gym[track]"`)"""
    reward: RewardConfig = field(default_factory=RewardConfig)
    preferences: PreferencesConfig = field(default_factory=PreferencesConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    @property
    def task(self) -> Task | None:
        """The record of the task; for Humanoid-v4 it is the humanoid task with the same prompt, if there is one.

        None for IDs without one, and for "module:ID" before the module is imported.
        """
        name = LEGACY_NAMES.get(self._name, self._name)
        id, prompts = name.rpartition(":")[2], self.reward.prompt
        # As `find_task`, which would import the module.
        named = next((one for one in REGISTERED.values() if id in (one.id, one.id.rpartition("-v")[0])), None)
        if named is None or self._name not in LEGACY_NAMES:
            return named
        return next((task for task in TASKS if task.env == named.env and [task.prompt] == prompts), named)

    @property
    def id(self) -> str:
        """The environment's ID with its version; names of the published code are translated."""
        if self.task is None:
            return self._name
        module, colon, _ = self._name.rpartition(":")
        return f"{module}{colon}{self.task.id}"

    @property
    def _name(self) -> str:
        return (self.env_name or "").removeprefix("vlmrm_gym:")

    @property
    def reward_with_task_prompts(self) -> RewardConfig:
        """The reward with the task's prompt, and with the task's baseline if `alpha` needs one, where none is given."""
        reward, task = self.reward, self.task
        if task is None or (reward.is_own and reward.name != "preference"):
            return reward
        is_shown = reward.goal_images is not None
        if reward.prompt is None and task.prompt is not None and "prompt" not in (reward.kwargs or {}) and not is_shown:
            reward = replace(reward, prompt=[task.prompt])
        has_baseline = reward.baseline is not None or reward.baseline_images is not None
        if not has_baseline and reward.alpha > 0 and not reward.is_own and task.baseline is not None:
            reward = replace(reward, baseline=[task.baseline])
        return reward

    @property
    def run_folder(self) -> Path:
        """The run's folder. Needs defaults filled in."""
        environment = re.sub(r"[/:\\]", "_", self.id.removeprefix("VLMRM/"))
        name = f"{environment}__{self.rl.algorithm}__{self.seed}__{int(time.time())}"
        return Path(self.base_path).expanduser() / (self.run_name or name)

    @property
    def has_success(self) -> bool:
        """Whether the task is known to define success."""
        return self.task is not None and self.task.success_threshold is not None

    @property
    def success_threshold(self) -> float:
        """The fraction of an episode's steps that must succeed."""
        return (self.task and self.task.success_threshold) or 0.5

    @property
    def num_envs(self) -> int:
        """The number of environments. Needs defaults filled in."""
        return (self.rl.n_envs_per_worker or 1) * max(1, self.reward.num_workers)

    @property
    def min_steps_to_reward(self) -> int:
        """Steps, over all environments, until every environment has rewards. Needs defaults filled in."""
        assert self.rl.episode_length is not None
        if self.reward.scoring == "step":
            return self.num_envs
        # With overlap, an episode's rewards arrive at the latest when the next one ends.
        return self.num_envs * self.rl.episode_length * (2 if self.reward.overlap else 1)
