"""What a training is told, in the format of the published VLM-RM code's configuration files, with more keys."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict
from tyro.constructors import PrimitiveConstructorSpec

from vlmrm_gym.tasks import TASKS, Task

LEGACY_NAMES: Mapping[str, str] = {
    "CartPole-v1": "VLMRM/CartPole-v1",
    "MountainCarContinuous-v0": "VLMRM/MountainCarContinuous-v0",
    "Humanoid-v4": "VLMRM/Humanoid-v0",
}
"""The environments of the published code, and the IDs that they mean here."""

AlgorithmName = Literal["SAC", "TD3", "DDPG", "TQC", "CrossQ", "DQN", "QRDQN", "PPO", "A2C"]


class ConfigLoader(yaml.SafeLoader):
    """Reads 3e-4 as a number, as YAML 1.2 does."""


ConfigLoader.yaml_implicit_resolvers = {
    key: list(pairs) for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class ConfigDumper(yaml.SafeDumper):
    """Puts texts that look like numbers to `ConfigLoader` in quotes."""


ConfigDumper.yaml_implicit_resolvers = ConfigLoader.yaml_implicit_resolvers


def _whole(given: Any) -> Any:
    """1e6 is an integer, too."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _texts(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


def _not_empty(given: str) -> str:
    if not given.strip():
        raise ValueError("must not be empty")
    return given


def _auto(given: str) -> str:
    if not re.fullmatch(r"auto(_[0-9.eE+-]+)?", given):
        raise ValueError("must be a number, auto, or auto_0.1")
    return given


def _device(given: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", given):
        raise ValueError("must be auto, cpu, mps, cuda or cuda:1")
    return given


def _integer(words: list[str]) -> int:
    """What a flag says; 1e6 is one."""
    try:
        return int(words[0])
    except ValueError:
        if not (number := float(words[0])).is_integer():
            raise
        return int(number)


def _mapping(words: list[str]) -> Any:
    """What a flag says in YAML."""
    try:
        return yaml.load(words[0], Loader=ConfigLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"this is no YAML: {words[0]}") from error


Integer = Annotated[
    int,
    Strict(),
    BeforeValidator(_whole),
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_integer,
        is_instance=lambda given: isinstance(given, int),
        str_from_instance=lambda given: [str(given)],
    ),
]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Count = Annotated[Integer, Field(ge=1)]
CountOrNone = Annotated[Integer, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Positive = Annotated[Number, Field(gt=0)]
Device = Annotated[str, AfterValidator(_device)]
Text = Annotated[str, AfterValidator(_not_empty)]
Texts = Annotated[list[Text], Field(min_length=1), BeforeValidator(_texts)]
YAMLMapping = Annotated[
    dict[str, Any],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="YAML",
        instance_from_str=_mapping,
        is_instance=lambda given: isinstance(given, dict),
        str_from_instance=lambda given: [yaml.dump(given, Dumper=ConfigDumper, default_flow_style=True).strip()],
    ),
]


@dataclass(kw_only=True)
class RewardConfig:
    """The reward: what is looked at, by which model, and what for."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: Literal["clip", "ground_truth"] = "clip"
    """clip: how well what is seen matches the prompts; ground_truth: the environment's own reward"""
    pretrained_model: str = "tiny"
    """the vision-language model: "tiny" (bundled), or any of open_clip's, see `vlmrm_gym.CLIPReward`"""
    batch_size: Count | None = None
    """the most frames that are encoded at once; it never changes a reward (None: chosen)"""
    alpha: Share = 0.0
    """strength of the goal-baseline regularisation"""
    target_prompts: Texts | None = None
    """what the agent should bring about; several texts count as one (None: the task's)"""
    baseline_prompts: Texts | None = None
    """the scene without the goal (None: the task's)"""
    cache_dir: str | None = None
    """where downloaded weights are kept (None: Hugging Face's own place)"""
    camera_config: YAMLMapping | None = None
    """humanoids: fields of MuJoCo's camera, such as {distance: 3.5, azimuth: 180} (None: the paper's)"""
    textured: Flag = True
    """humanoids and mountain car: photo-like scenes, or Gymnasium's"""
    quality: Literal["fast", "faithful"] = "fast"
    """humanoids: without shadows and reflections, or with them"""
    task_reward_weight: Number = 0.0
    """rewards are the model's plus this many times the environment's own"""
    device: Device = "auto"
    """where the model looks: auto, cpu, cuda, cuda:1, mps"""
    num_workers: CountOrNone = 0
    """processes that draw and score (0: the one that trains)"""
    devices: list[Device] | None = None
    """where the workers score, taken in turn (None: all GPUs)"""
    overlap: Flag = False
    """step on while episodes are scored: faster, but no two runs are equal"""


@dataclass(kw_only=True)
class RLConfig:
    """The algorithm, of Stable-Baselines3. What is None suits the task, or is Stable-Baselines3's default."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    algorithm: AlgorithmName | None = None
    """of Stable-Baselines3 or sb3-contrib"""
    policy_name: Literal["MlpPolicy"] = "MlpPolicy"
    """the kind of network"""
    n_steps: Count | None = None
    """steps of the training, over all environments"""
    n_envs_per_worker: Count | None = None
    """environments for each worker of the reward, and at least for one"""
    episode_length: Count | None = None
    """steps until an episode is truncated"""
    learning_starts: CountOrNone | None = None
    """steps, over all environments, before the first gradient step"""
    train_freq: Count | None = None
    """steps of every environment between trainings; PPO and A2C: the length of a rollout"""
    gradient_steps: Annotated[Integer, Field(ge=-1)] | None = None
    """in each training (-1: as many as there were steps, over all environments); PPO: epochs"""
    batch_size: Count | None = None
    """transitions in a gradient step"""
    learning_rate: Positive | None = None
    """of the optimiser"""
    gamma: Share | None = None
    """discount factor"""
    tau: Share | None = None
    """how far target networks move at once"""
    buffer_size: Count | None = None
    """transitions in the replay buffer (None: a million)"""
    ent_coef: Number | Annotated[str, AfterValidator(_auto)] | None = None
    """entropy coefficient: a number, auto, or auto_0.1 (auto, starting there)"""
    use_sde: Flag | None = None
    """state-dependent exploration: the same noise for a whole rollout of train_freq steps"""
    target_update_interval: Count | None = None
    """steps (SAC: gradient steps) between updates of the target network"""
    exploration_fraction: Share | None = None
    """DQN: share of the training in which exploration falls to its final value"""
    exploration_initial_eps: Share | None = None
    """DQN: share of random actions at first"""
    exploration_final_eps: Share | None = None
    """DQN: share of random actions in the end"""
    action_noise: YAMLMapping | None = None
    """{name: NormalActionNoise, mean: 0, sigma: 0.1}, or OrnsteinUhlenbeckActionNoise; or, until learning starts,
    {name: HeldActionNoise, sigma: 2, hold: 30}"""
    normalize_observations: Flag | None = None
    """by their mean and standard deviation in the batches"""
    policy_kwargs: YAMLMapping | None = None
    """such as {net_arch: [256, 256]}"""
    device: Device = "auto"
    """where the agent learns"""


@dataclass(kw_only=True)
class LoggingConfig:
    """How often something is written, in steps over all environments; 0: never."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    checkpoint_freq: CountOrNone | None = None
    """checkpoints (None: ten in all)"""
    video_freq: CountOrNone | None = None
    """videos of the deterministic agent, with its reward drawn in (None: five in all)"""
    tensorboard_freq: CountOrNone | None = None
    """TensorBoard events (None: a hundred in all)"""


@dataclass(kw_only=True)
class Config:
    """A training."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    env_name: str | None = None
    """a registered ID (see `vlmrm-gym tasks`); Humanoid-v4, CartPole-v1 and MountainCarContinuous-v0 mean ours"""
    base_path: str = "runs"
    """where the run's folder is made"""
    run_name: str | None = None
    """the folder's name (None: environment, algorithm, seed and time)"""
    seed: Annotated[Integer, Field(ge=0, lt=2**32)] = 0
    """of environments and agent"""
    description: str = ""
    """for yourself"""
    tags: list[str] = field(default_factory=list)
    """for Weights and Biases"""
    track: Flag = False
    """log to Weights and Biases, too (`pip install "vlmrm-gym[track]"`)"""
    reward: RewardConfig = field(default_factory=RewardConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    @property
    def task(self) -> Task:
        """The row of the task table. For Humanoid-v4 it is the one with the prompt, and its judge, if there is one.

        Raises:
            KeyError: The environment has no name, or an unknown one.
        """
        named, prompts = TASKS_BY_NAME[self.env_name or ""], self.reward.target_prompts
        same_prompt = (task for task in TASKS if task.world == named.world and [task.prompt] == prompts)
        return next(same_prompt, named) if self.env_name in LEGACY_NAMES else named

    @property
    def run_folder(self) -> Path:
        """Where the run is written, once `suited`."""
        name = f"{self.task.id.removeprefix('VLMRM/')}__{self.rl.algorithm}__{self.seed}__{int(time.time())}"
        return Path(self.base_path).expanduser() / (self.run_name or name)

    @property
    def judged(self) -> bool:
        """Whether somebody knows success: not where the caller says what to do."""
        return self.task.options.get("task", "") is not None

    @property
    def num_envs(self) -> int:
        """How many environments there are, once `suited`."""
        return (self.rl.n_envs_per_worker or 1) * max(1, self.reward.num_workers)

    @property
    def steps_to_rewards(self) -> int:
        """Steps, over all environments, until every environment has rewards, once `suited`."""
        assert self.rl.episode_length is not None
        # With overlap, an episode's rewards are there when the next one ends at the latest.
        return self.num_envs * self.rl.episode_length * (2 if self.reward.overlap else 1)


TASKS_BY_NAME: Mapping[str, Task] = {task.id: task for task in TASKS} | {
    name: next(task for task in TASKS if task.id == id) for name, id in LEGACY_NAMES.items()
}

OF_ALL_ALGORITHMS = (
    "algorithm",
    "policy_name",
    "n_steps",
    "n_envs_per_worker",
    "episode_length",
    "normalize_observations",
    "device",
)
"""Keys of `rl` that are no parameters of an algorithm."""

SUITED: Mapping[str, RLConfig] = {
    "CartPole": RLConfig(
        algorithm="DQN",
        n_steps=20_000,
        n_envs_per_worker=4,
        learning_starts=1_600,
        train_freq=1,
        gradient_steps=4,
        batch_size=128,
        learning_rate=5e-4,
        gamma=0.98,
        tau=0.02,
        target_update_interval=4,
        exploration_fraction=0.4,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [128, 128]},
    ),
    "MountainCar": RLConfig(
        algorithm="SAC",
        n_steps=40_000,
        n_envs_per_worker=8,
        learning_starts=4_800,
        train_freq=1,
        gradient_steps=4,
        batch_size=256,
        learning_rate=6e-4,
        gamma=0.99,
        # A car has to swing up before the prompt can tell it that it is near the flag: exploration has to last.
        action_noise={"name": "HeldActionNoise", "sigma": 2.0, "hold": 30},
        normalize_observations=True,
        policy_kwargs={"net_arch": [128, 128]},
    ),
    "Humanoid": RLConfig(
        algorithm="SAC",
        n_steps=200_000,
        n_envs_per_worker=8,
        learning_starts=4_000,
        train_freq=1,
        gradient_steps=4,
        batch_size=256,
        learning_rate=6e-4,
        gamma=0.95,
        normalize_observations=True,
        policy_kwargs={"net_arch": [256, 256]},
    ),
}
"""By world; what they learned from the bundled model's rewards is in benchmarks/RESULTS.md."""


_PUBLISHED_KEYS = (
    "n_steps",
    "n_envs_per_worker",
    "episode_length",
    "learning_starts",
    "train_freq",
    "batch_size",
    "gradient_steps",
    "tau",
    "gamma",
    "learning_rate",
)
"""Of `rl`, what every configuration file of the published code has."""


def _is_published(config: Config) -> bool:
    """Whether it means what it leaves open to be as in Stable-Baselines3: as files of the published code do."""
    return config.env_name in LEGACY_NAMES and all(getattr(config.rl, key) is not None for key in _PUBLISHED_KEYS)


def suited(config: Config) -> Config:
    """The configuration, with what it leaves open filled in for its task and algorithm.

    Keys of `rl` that the algorithm does not know stay None, as does what is as in Stable-Baselines3.

    Raises:
        KeyError: As `Config.task`.
    """
    from vlmrm_gym.training.algorithms import ALGORITHMS, keys_of

    task, given = config.task, config.rl
    own = SUITED[task.world]
    algorithm = given.algorithm or own.algorithm
    assert algorithm is not None
    known = keys_of(algorithm)
    rl = replace(given, algorithm=algorithm)
    if _is_published(config):
        own = RLConfig(algorithm=algorithm)
    for key in (one.name for one in fields(rl)):
        if getattr(given, key) is None and (key in known or key in OF_ALL_ALGORITHMS):
            setattr(rl, key, getattr(own, key))
    if ALGORITHMS[algorithm].on_policy:  # what they call by these names is something else than for the others
        rl.train_freq, rl.gradient_steps, rl.batch_size = given.train_freq, given.gradient_steps, given.batch_size
    rl.episode_length = rl.episode_length or task.episode_length
    assert rl.n_steps is not None
    if given.learning_starts is None and rl.learning_starts is not None:  # something is learned in short trainings too
        earliest = replace(config, rl=rl).steps_to_rewards - 1
        rl.learning_starts = min(rl.learning_starts, max(earliest, rl.n_steps // 2))
    logging = LoggingConfig(
        **{
            key: max(1, rl.n_steps // count) if (value := getattr(config.logging, key)) is None else value
            for key, count in {"checkpoint_freq": 10, "video_freq": 5, "tensorboard_freq": 100}.items()
        }
    )
    reward = config.reward
    if reward.target_prompts is None and task.prompt is not None:
        reward = replace(reward, target_prompts=[task.prompt])
    if reward.baseline_prompts is None and reward.alpha > 0:
        reward = replace(reward, baseline_prompts=[task.baseline])
    return replace(config, rl=rl, reward=reward, logging=logging)
