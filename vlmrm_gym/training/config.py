"""The configuration of a training run: a superset of the published VLM-RM code's format."""

import re
import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from pydantic import ConfigDict, Field

from vlmrm_gym.rendering import Quality
from vlmrm_gym.rewards.clip import CLIPFields
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.tasks import REGISTERED, TASKS, Task
from vlmrm_gym.training.aliases import FLAGS, LEGACY_NAMES
from vlmrm_gym.training.config_types import (
    Cameras,
    Count,
    Flag,
    Fraction,
    Integer,
    LabelerValue,
    Name,
    Number,
    Positive,
    Processes,
    Steps,
    StepsOrNone,
    YAMLMapping,
)
from vlmrm_gym.training.spec_fields import with_spec_fields

AlgorithmName = Literal["SAC", "TD3", "DDPG", "TQC", "CrossQ", "DQN", "QRDQN", "PPO", "A2C"]
PolicyName = Literal["MlpPolicy", "MultiInputPolicy"]


class _Section:
    """What has no other keys than its fields."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(kw_only=True)
class _RewardName(_Section):
    name: Annotated[str, tyro.conf.arg(aliases=FLAGS["name"])] = "clip"
    """clip: how well the frame matches the prompt; ground_truth: the environment's own reward; another kind, such as
    preference; a callable, a class of callables or a specification of your own, "package.module:attribute"; or the JSON
    file of a specification"""
    kwargs: Annotated[YAMLMapping | None, tyro.conf.arg(aliases=FLAGS["kwargs"])] = None
    """for a reward other than clip: keyword arguments of the callable or class, or the specification's fields"""
    labeler: Annotated[LabelerValue | None, tyro.conf.arg(aliases=FLAGS["labeler"])] = None
    """for preference: what answers which of two segments is closer to the goal; its kind or settings, such as
    {kind: ground_truth, mistakes: 0.1}, or "package.module:attribute" """


_RewardFields: Any = with_spec_fields(
    CLIPFields,
    after=_RewardName,
    more_help={"prompt": "None: the task's.", "baseline": "None: the task's."},
    aliases=FLAGS,
)


@dataclass(kw_only=True)
class RewardConfig(_RewardFields):
    """The reward. The fields of `vlmrm_gym.CLIP`, from `prompt` on, are for `name: clip`, and those that
    `vlmrm_gym.Preference` has, too, for `name: preference`.
    """

    camera: Annotated[Cameras | None, tyro.conf.arg(aliases=FLAGS["camera"])] = None
    """MuJoCo only: settings of its camera, such as {distance: 3.5, azimuth: 180}, or one of the model's cameras by name
    or number; a list of such; or a named set, paper, side, front-side or around (None: humanoids: the paper's, others:
    the environment's own)"""
    combine_views: str | None = None
    """how the rewards of several cameras make one: min, mean, or your own function, "package.module:attribute"
    (None: min)"""
    textured: Flag = True
    """humanoids and mountain car: photo-like scenes, or Gymnasium's"""
    quality: Quality = "fast"
    """MuJoCo only: fast leaves out shadows, reflections and antialiasing; faithful draws them"""
    task_reward_weight: Number = 0.0
    """adds this many times the environment's own reward"""
    score_every: Count = 1
    """draws and encodes the first, every so manyth and the last state of an episode; rewards in between are
    interpolated"""
    device: str = "auto"
    """where the model runs: auto, cpu, cuda, cuda:1, mps"""
    num_workers: Processes = 0
    """workers that draw and score (0: the process that trains)"""
    backend: Literal["process", "ray"] = "process"
    """where workers run: processes of this machine, or actors of a Ray cluster (RAY_ADDRESS, or else a local one)"""
    ray_options: YAMLMapping | None = None
    """options of the Ray actors, such as {num_gpus: 0.25}"""
    devices: list[str] | None = None
    """where worker processes score, taken in turn (None: all GPUs)"""
    overlap: Flag = False
    """step on while episodes are scored: faster, but runs are not reproducible"""
    max_pending_bytes: Annotated[Integer, Field(ge=1, le=10**15)] = 2**30
    """maximum memory for states that wait to be scored"""
    worker_timeouts: YAMLMapping | None = None
    """seconds without progress after which a worker is replaced, such as {load: 3600, draw: 300, encode: 900}"""
    cache_dir: str | None = None
    """where downloaded weights are kept (None: Hugging Face's own cache)"""

    @property
    def is_own(self) -> bool:
        """Whether the reward is of another kind than CLIP, and not the environment's."""
        return self.name not in ("clip", "ground_truth")

    @property
    def is_sparse(self) -> bool:
        """Whether some rewards are interpolated."""
        return self.score_every > 1

    @property
    def clip_fields(self) -> dict[str, Any]:
        """The fields of `CLIP` and their values."""
        return {one.name: getattr(self, one.name) for one in fields(CLIPFields)}

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of an environment that say which reward. Not for ground_truth."""
        if not self.is_own:
            return {**self.clip_fields, "reward_kwargs": self.kwargs}
        default, kwargs = RewardConfig(), dict(self.kwargs or {})
        given = {name: value for name, value in self.clip_fields.items() if value != getattr(default, name)}
        if ":" in self.name:
            return {"reward": self.name, "reward_kwargs": self.kwargs, **given}
        if self.name == "preference":
            for name in [one.name for one in fields(Preference) if one.name in given and one.name not in kwargs]:
                kwargs[name] = given.pop(name)
            if isinstance(prompt := kwargs.get("prompt"), list) and len(prompt) == 1:
                kwargs["prompt"] = prompt[0]
        return {"reward": {**kwargs, "kind": self.name}, **given}


@dataclass(kw_only=True)
class PreferencesConfig(_Section):
    """How a reward is learned from the answers of `reward.labeler`."""

    first: Count | None = None
    """steps, over all environments, before the first session (None: rl.learning_starts; for PPO and A2C `every`)"""
    every: Count | None = None
    """steps, over all environments, from one session to the next (None: all are in the first half of the training)"""
    pairs: Count = 50
    """pairs that a session asks about, on average"""
    total: Count = 500
    """pairs of all sessions"""
    schedule: str = "constant"
    """how pairs are divided over sessions: constant, or "package.module:function" """
    segment_length: Count = 1
    """states of a segment, whose rewards add up"""
    sampling: Literal["uniform", "disagreement"] = "disagreement"
    """which pairs are asked about: any, or those about which the networks disagree most"""
    candidates: Count = 10
    """for disagreement: pairs that are compared for each that is asked about"""
    half_life: Count | None = None
    """newer states are preferred: their weight halves with every so many steps that came after (None: all are alike)"""
    fit: YAMLMapping | None = None
    """fields of vlmrm_gym.preferences.FitOptions, such as {epochs: 100, l2: 5}"""
    answers: str | None = None
    """file of answers, which runs may share: what is in it is not asked again (None: answers.db in the run's folder)"""

    @property
    def num_sessions(self) -> int:
        """The number of sessions."""
        return -(-self.total // self.pairs)


@dataclass(kw_only=True)
class RLConfig(_Section):
    """The algorithm, of Stable-Baselines3. None: the task's default, else Stable-Baselines3's."""

    algorithm: AlgorithmName | None = None
    """of Stable-Baselines3 or sb3-contrib"""
    policy_name: PolicyName | None = None
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
    learning_starts: StepsOrNone | None = None
    """steps, over all environments, before the first gradient step"""
    train_freq: Count | None = None
    """steps of every environment between updates; PPO and A2C: the length of a rollout"""
    gradient_steps: Annotated[Integer, Field(ge=-1, le=10**9)] | None = None
    """gradient steps in each update (-1: as many as steps, over all environments); PPO: epochs"""
    batch_size: Count | None = None
    """transitions in a gradient step"""
    learning_rate: Positive | None = None
    """of the optimiser"""
    gamma: Fraction | None = None
    """discount factor"""
    tau: Fraction | None = None
    """soft-update coefficient of the target networks; 1: a copy"""
    buffer_size: Count | None = None
    """transitions in the replay buffer (None: a million)"""
    ent_coef: Annotated[Number, Field(ge=0)] | str | None = None
    """entropy coefficient: a number, auto, or auto_0.1 (auto, starting there)"""
    use_sde: Flag | None = None
    """state-dependent exploration: the same noise for a whole rollout of train_freq steps"""
    target_update_interval: Count | None = None
    """steps (SAC: gradient steps) between updates of the target network"""
    exploration_fraction: Fraction | None = None
    """DQN: fraction of the training in which exploration falls to its final value"""
    exploration_initial_eps: Fraction | None = None
    """DQN: fraction of random actions at first"""
    exploration_final_eps: Fraction | None = None
    """DQN: fraction of random actions in the end"""
    action_noise: YAMLMapping | None = None
    """{name: NormalActionNoise, mean: 0, sigma: 0.1}, or OrnsteinUhlenbeckActionNoise; or, until learning starts,
    {name: ActionRepeatNoise, sigma: 2, hold: 30}"""
    normalize_observations: Flag | None = None
    """normalise observations by their running mean and standard deviation"""
    policy_kwargs: YAMLMapping | None = None
    """such as {net_arch: [256, 256]}"""
    device: str = "auto"
    """where the agent learns"""


@dataclass(kw_only=True)
class LoggingConfig(_Section):
    """How often to write, in steps over all environments; 0: never."""

    checkpoint_freq: StepsOrNone | None = None
    """checkpoints (None: ten in all)"""
    video_freq: StepsOrNone | None = None
    """videos of the deterministic policy, with its reward drawn in (None: five in all)"""
    tensorboard_freq: StepsOrNone | None = None
    """TensorBoard events (None: a hundred in all)"""


@dataclass(kw_only=True)
class Config(_Section):
    """The configuration of a training run."""

    env_name: str | None = None
    """a registered ID: of this package (see `vlmrm-gym tasks`), or any other that renders, such as Ant-v5, or
    module:ID; Humanoid-v4, CartPole-v1 and MountainCarContinuous-v0 stand for those of this package"""
    env_kwargs: YAMLMapping | None = None
    """keyword arguments for an ID of another package"""
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
        """The record of the task; None for IDs without one, and for "module:ID" before the module is imported.

        For Humanoid-v4 it is the humanoid task with the same prompt, if there is one.
        """
        name = LEGACY_NAMES.get(self._name, self._name)
        named, prompts = REGISTERED.get(name.rpartition(":")[2]), self.reward.prompt
        if named is None or self._name not in LEGACY_NAMES:
            return named
        return next((task for task in TASKS if task.env == named.env and [task.prompt] == prompts), named)

    @property
    def id(self) -> str:
        """The environment's ID; names of the published code are translated."""
        return self.task.id if self.task and self._name in LEGACY_NAMES else self._name

    @property
    def _name(self) -> str:
        return (self.env_name or "").removeprefix("vlmrm_gym:")

    @property
    def reward_with_task_prompts(self) -> RewardConfig:
        """The reward with the task's prompt, and with the task's baseline if `alpha` needs one, where none is given."""
        reward, task = self.reward, self.task
        if task is None or (reward.is_own and reward.name != "preference"):
            return reward
        if reward.prompt is None and task.prompt is not None and "prompt" not in (reward.kwargs or {}):
            reward = replace(reward, prompt=[task.prompt])
        if reward.baseline is None and reward.alpha > 0 and not reward.is_own and task.baseline is not None:
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
        # With overlap, an episode's rewards arrive at the latest when the next one ends.
        return self.num_envs * self.rl.episode_length * (2 if self.reward.overlap else 1)


NON_ALGORITHM_KEYS = (
    "algorithm",
    "policy_name",
    "n_steps",
    "n_envs_per_worker",
    "episode_length",
    "start_near_goal",
    "normalize_observations",
    "device",
)
"""Keys of `rl` that are not parameters of an algorithm."""
