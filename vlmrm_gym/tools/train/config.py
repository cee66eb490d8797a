"""The configuration of a training run: a superset of the published VLM-RM code's format.

Settings are declared here, once, with their checks, as those of the reward are in `rewards` and `scoring`: tyro makes
flags and help of them.
"""

# ruff: noqa: RUF009 -- `setting` makes fields
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vlmrm_gym._util.validation import check_flag, check_fraction, check_that, short_repr
from vlmrm_gym.rewards.clip import Check, CLIPFields, check_count, integer, of_type, one_of, optional
from vlmrm_gym.scoring.options import FileOptions
from vlmrm_gym.tasks import REGISTERED, TASKS, Task

LEGACY_NAMES: Mapping[str, str] = {
    "CartPole-v1": "VLMRM/CartPole-v1",
    "MountainCarContinuous-v0": "VLMRM/MountainCarContinuous-v0",
    "Humanoid-v4": "VLMRM/Humanoid-v0",
}
"""Environment names of the published code, and their IDs here."""
AlgorithmName = Literal["SAC", "TD3", "DDPG", "TQC", "CrossQ", "DQN", "QRDQN", "PPO", "A2C"]
PolicyName = Literal["MlpPolicy", "MultiInputPolicy"]
Sampling = Literal["uniform", "disagreement"]


def _texts(name: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"`{name}` must be a text or a list of texts. Received {short_repr(value)}.")
    return texts


def _name(name: str, value: Any) -> str:
    is_one = isinstance(value, str) and value.isprintable() and value.strip() not in ("", ".", "..")
    rule = "a plain name: not empty, without / and \\, and neither . nor .."
    return check_that(is_one and not set(value) & set("/\\"), name, rule, value)


text = of_type(str, "a text")
mapping = of_type(dict, "a mapping of keys to values")
_mapping_or_text = of_type(dict | str, "a mapping or a text")  # pyright: ignore[reportArgumentType]
steps = integer(1, 10**12)
"""At most 10^12: years of training."""
steps_or_never = integer(0, 10**12)


def setting(default: Any, check: Check) -> Any:
    """A field with a check, which may be None if that is its default."""
    return field(default=default, metadata={"check": optional(check) if default is None else check})


@dataclass(frozen=True, kw_only=True)
class RewardConfig(FileOptions, CLIPFields):
    """The reward, and how it is scored. Fields of `vlmrm_gym.CLIP` are for `name: clip`; those that `Preference` has,
    also for that.
    """

    name: str = setting("clip", text)
    """clip: how well the frame matches the prompt; ground_truth: the environment's own reward; another kind, such as
    preference; a callable, a class of callables or a specification of your own, "package.module:attribute"; or the JSON
    file of a specification"""
    kwargs: Mapping[str, Any] | None = setting(None, mapping)
    """for a reward other than clip: keyword arguments of the callable or class, or the specification's fields"""
    labeler: Mapping[str, Any] | str | None = setting(None, _mapping_or_text)
    """for preference: what answers which of two segments is closer to the goal; its kind or settings, such as
    {kind: ground_truth, mistake_rate: 0.1}, or "package.module:attribute" """
    prompt: list[str] | None = setting(None, _texts)  # pyright: ignore[reportIncompatibleVariableOverride]
    """the goal: a text or a list of texts (None: the task's)"""
    baseline: list[str] | None = setting(None, _texts)
    """the scene without the goal: a text or a list of texts; required for alpha above 0 (None: the task's)"""
    goal_images: list[str] | None = setting(None, _texts)
    """pictures of the goal, in place of the task's prompt, or beside a prompt that is given: files, which are relative
    to a configuration file that names them; or "task": states of the task's goal"""
    baseline_images: list[str] | None = setting(None, _texts)
    """pictures of the scene without the goal"""
    textured: bool = setting(True, check_flag)
    """humanoids and mountain car: photo-like scenes, or Gymnasium's"""
    cache_dir: str | None = setting(None, text)
    """where downloaded weights are kept (None: Hugging Face's own cache)"""

    def __post_init__(self) -> None:
        """Leave the checks to the specification."""

    @property
    def is_own(self) -> bool:
        """Whether the reward is of another kind than CLIP, and not the environment's."""
        return self.name not in ("clip", "ground_truth")


@dataclass(frozen=True, kw_only=True)
class PreferencesConfig:
    """How a reward is learned from the answers of `reward.labeler`."""

    first: int | None = setting(None, check_count)
    """steps, over all environments, before the first round (None: rl.learning_starts; for PPO and A2C `every`)"""
    every: int | None = setting(None, check_count)
    """steps, over all environments, from one round to the next (None: all are in the first half of the training)"""
    pairs: int = setting(50, check_count)
    """pairs that a round asks about, on average"""
    total: int = setting(500, check_count)
    """pairs of all rounds"""
    schedule: str = setting("constant", text)
    """how pairs are divided over rounds: constant, or "package.module:function" """
    segment_length: int = setting(1, check_count)
    """states of a segment, whose rewards add up"""
    sampling: Sampling = setting("disagreement", one_of(Sampling))
    """which pairs are asked about: any, or those about which the networks disagree most"""
    candidates: int = setting(10, check_count)
    """for disagreement: pairs that are compared for each that is asked about"""
    half_life: int | None = setting(None, check_count)
    """newer states are preferred: their weight halves with every so many steps that came after (None: all are alike)"""
    fit: Mapping[str, Any] | None = setting(None, mapping)
    """fields of vlmrm_gym.learning.FitOptions, such as {epochs: 100, l2: 5}"""
    answers: str | None = setting(None, text)
    """file of answers, which runs may share: what is in it is not asked again (None: answers.db in the run's folder)"""

    @property
    def num_rounds(self) -> int:
        """The number of rounds."""
        return -(-self.total // self.pairs)


@dataclass(frozen=True, kw_only=True)
class RLConfig:
    """The algorithm, of Stable-Baselines3; and any keyword argument of its class, such as --rl.learning-rate 3e-4 or
    --rl.policy-kwargs "{net_arch: [256, 256]}". None: the task's default, else Stable-Baselines3's.
    """

    algorithm: AlgorithmName | None = setting(None, one_of(AlgorithmName))
    """of Stable-Baselines3 or sb3-contrib"""
    policy_name: PolicyName | None = setting(None, one_of(PolicyName))
    """the kind of network (None: MultiInputPolicy for observations that are dictionaries, else MlpPolicy)"""
    n_steps: int | None = setting(None, steps)
    """steps of the training, summed over all environments"""
    n_envs_per_worker: int | None = setting(None, check_count)
    """environments for each worker of the reward; without workers, environments in all"""
    episode_length: int | None = setting(None, check_count)
    """steps until an episode is truncated"""
    start_near_goal: float = setting(0.0, check_fraction)
    """humanoid tasks: probability that a training episode starts on the way to the task's pose, a curriculum;
    agents are evaluated from the usual initial state"""
    normalize_observations: bool | None = setting(None, check_flag)
    """normalise observations by their running mean and standard deviation"""
    device: str = setting("auto", text)
    """where the agent learns"""
    learning_starts: int | None = setting(None, steps_or_never)
    """steps, over all environments, before the first gradient step"""
    train_freq: int | None = setting(None, check_count)
    """steps of every environment between updates; PPO and A2C: the length of a rollout"""
    gradient_steps: int | None = setting(None, integer(-1, 10**9))
    """gradient steps in each update (-1: as many as steps, over all environments); PPO: epochs"""
    action_noise: Mapping[str, Any] | None = setting(None, mapping)
    """{name: NormalActionNoise, mean: 0, sigma: 0.1}, or OrnsteinUhlenbeckActionNoise; or, until learning starts,
    {name: ActionRepeatNoise, sigma: 2, hold: 30}"""
    options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """other keyword arguments of the algorithm's class; in files and flags they are keys of `rl`"""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "RLConfig":
        """The section with these keys, as a file has them."""
        names = cls.__dataclass_fields__.keys() - {"options"}
        options = {name: value for name, value in values.items() if name not in names}
        return cls(**{name: value for name, value in values.items() if name in names}, options=options)

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


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """How often to write, in steps over all environments; 0: never."""

    checkpoint_freq: int | None = setting(None, steps_or_never)
    """checkpoints (None: ten in all)"""
    video_freq: int | None = setting(None, steps_or_never)
    """videos of the deterministic policy, with its reward drawn in (None: five in all)"""
    tensorboard_freq: int | None = setting(None, steps_or_never)
    """TensorBoard events (None: a hundred in all)"""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a training run."""

    env_name: str | None = setting(None, text)
    """a registered ID, such as Ant-v5; module:ID, which imports the module first; or package.module:function;
    Humanoid-v4, CartPole-v1 and MountainCarContinuous-v0 stand for those of this package"""
    env_kwargs: Mapping[str, Any] | None = setting(None, mapping)
    """keyword arguments of the function, or of another package's ID"""
    base_path: str = setting("runs", text)
    """where the run's folder is made"""
    run_name: str | None = setting(None, _name)
    """the folder's name, in base_path (None: environment, algorithm, seed and time)"""
    seed: int = setting(0, integer(0, 2**32 - 1))
    """of environments and agent"""
    description: str = setting("", text)
    """your notes"""
    tags: list[str] = field(default_factory=list, metadata={"check": _texts})
    """tags for Weights and Biases"""
    track: bool = setting(False, check_flag)
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
