"""The command `vlmrm-gym dataset`: rollouts with their rewards, as a Minari dataset."""

import copy
import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import tyro
from gymnasium.envs.registration import EnvSpec
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, say
from vlmrm_gym._util.validation import find_time_limit
from vlmrm_gym.data.dataset_folder import DatasetFolder, check_spaces
from vlmrm_gym.data.rollouts import Policy, constant_actions, play, random_actions
from vlmrm_gym.envs.make import find_task
from vlmrm_gym.rewards.saved import PICTURES
from vlmrm_gym.scoring.options import ViewOptions
from vlmrm_gym.tools.cli.settings import YAML, RewardFlags, describe_rewards, open_rewards, parse, specify
from vlmrm_gym.tools.environments import NamedEnv
from vlmrm_gym.tools.train.run_folder import RunError, RunFolder

_NOT_KEPT = ("out", "overwrite", "trust_code", "baseline", "model", "reward", "reward_kwargs", *PICTURES)
"""Flags that do not decide what is in the dataset, or are described by its rewards."""


@dataclass(frozen=True)
class Dataset(RewardFlags, ViewOptions):
    """Record rollouts with their rewards as a Minari dataset.

        vlmrm-gym dataset VLMRM/CartPole-v1 --out poles --episodes 20 --policy constant --frames
        vlmrm-gym dataset Ant-v5 --out ants --steps 200 --prompt "an ant on its back" --model ViT-B-32/laion2b_s34b_b79k
        vlmrm-gym dataset Ant-v5 --out ants --steps 200 --reward my_package.rewards:upright
        vlmrm-gym dataset VLMRM/CartPole-v1 --out best --policy runs/CartPole-v1__DQN__0__1700000000

    Each state is drawn and encoded once, for all prompts. The rewards of an episode are those of the first prompt (or
    --reward); infos have the rewards of all, the environment's own, success and the captured states. Episode i has the
    seed --seed + i.

    FOLDER/data is the dataset: minari.MinariDataset("FOLDER/data"). FOLDER/labels.csv has the success of every step,
    empty where the environment does not say it: fill it in by hand, with the videos of --frames.

    After Ctrl-C or a crash, the same command records the missing episodes.
    """

    id: Annotated[str | None, tyro.conf.Positional] = None
    """a registered ID, such as Ant-v5; module:ID, which imports the module first; or package.module:function"""
    env_kwargs: YAML = None
    """keyword arguments of the function, or of another package's ID, such as '{size: 3}'"""
    policy: str = "random"
    """random, constant (one action for a whole episode), or the folder of a run, or an agent on the hub (its best
    policy, deterministic)"""
    episodes: int = 10
    """number of episodes"""
    steps: int | None = None
    """steps of an episode, unless the environment ends it before (None: the environment's own time limit)"""
    seed: int = 0
    """of the first episode; the others' follow"""
    frames: bool = False
    """write a video of each episode, whose frames show the number of their step"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    _record(parse(Dataset, "dataset", arguments))


def record_dataset(id: str | None = None, **settings: Any) -> Path:
    """Record rollouts with their rewards as a Minari dataset: `vlmrm-gym dataset` as a function.

    The settings are the flags, see `Dataset`: `record_dataset("VLMRM/CartPole-v1", out="poles", episodes=20)`. A
    `reward` may also be a specification.

    Returns:
        The folder, with the dataset in `data`.
    """
    return _record(Dataset(id, **settings))


def _record(command: Dataset) -> Path:
    for name, least in (("episodes", 1), ("steps", 1), ("seed", 0)):
        value = getattr(command, name)
        if value is not None and not least <= value < 2**31:
            raise InputError(f"`{name}` must be from {least} to {2**31 - 1}. Received {value}.")
    if command.out is None:
        raise InputError("`out` must be given: the folder to write. Pass --out FOLDER.")
    with ExitStack() as opened:
        named = opened.enter_context(NamedEnv(command.id, command.env_kwargs, command.camera, command.steps))
        env, view = named.env, named.view
        check_spaces(env)
        specs = specify(command, named)
        if (steps := command.steps or find_time_limit(env)) is None:
            raise InputError(
                "`steps` must be given: this environment has no time limit. Pass --steps 200, for example."
            )
        name, weights, make_policy = _find_behaviour(command, env)
        flags = {flag: value for flag, value in asdict(command).items() if flag not in _NOT_KEPT}
        recorded = {"policy": name, "policy_weights": weights, "steps": steps, "camera": named.camera}
        settings = {**flags, **describe_rewards(specs), **recorded}
        folder = DatasetFolder(command.out.resolve())
        folder.check(settings, overwrite=command.overwrite)
        scorer = None
        if specs and (command.overwrite or folder.missing(command.episodes)):
            scorer = open_rewards(specs, command.device, view, command.combine_views)
            opened.enter_context(closing(scorer))
        folder.begin(settings, overwrite=command.overwrite)
        missing = folder.missing(command.episodes)
        done = command.episodes - len(missing)
        try:
            for episode in tqdm(missing, unit=" episodes", initial=done, total=command.episodes):
                seed = command.seed + episode
                rollout = play(env, view, make_policy(seed), seed=seed, steps=steps, source=name)
                states = rollout.with_initial
                rewards = None
                if scorer is not None:
                    rewards = np.concatenate([scorer.begin(states[:1]), scorer(states[1:])])
                    rewards = scorer.add_task_rewards(rewards, rollout.task_rewards)
                folder.add(episode, rollout, env, rewards, view if command.frames else None)
                done += 1
        except (KeyboardInterrupt, OSError):
            say(f"{done} of {command.episodes} episodes are done. The same command records the others.", error=True)
            raise
        metadata = {
            "dataset_id": folder.dataset_id or re.sub(r"\W+", "-", f"{command.id} {name}") + "-v0",
            "algorithm_name": name,
            "description": f"Made by `vlmrm-gym dataset`: {command.id}, policy {name}.",
            "rewards": settings["columns"],
            "prompts": settings["prompt"],
        }
        folder.finish(env, _describe_env(command, env, settings), metadata, command.seed)
    from minari import MinariDataset

    data = MinariDataset(folder.data)
    rewards = np.concatenate([episode.rewards for episode in data])
    say(f"{data.total_episodes:,} episodes of {data.total_steps:,} steps in all")
    say(f"rewards: from {rewards.min():.3f} to {rewards.max():.3f}, mean {rewards.mean():.3f}")
    say(f"Written: {', '.join(str(path) for path in (folder.data, folder.labels, folder.videos) if path.exists())}")
    say(f"Load it: minari.MinariDataset({str(folder.data)!r})")
    if folder.dataset_id is not None:
        say(f"or with MINARI_DATASETS_PATH={folder.path.parent}: minari.load_dataset({folder.dataset_id!r})")
    return folder.path


def _find_behaviour(command: Dataset, env: gym.Env[Any, Any]) -> tuple[str, str | None, Callable[[int], Policy]]:
    """Find the policy's name, the digest of a run's weights, and a function from an episode's seed to its policy."""
    if command.policy in ("random", "constant"):
        make = random_actions if command.policy == "random" else constant_actions
        # The environment's own generator has the seed alone: these streams are independent of it.
        return command.policy, None, lambda seed: make(env.action_space, np.random.default_rng([seed, 1]))
    try:
        opened = RunFolder.open(Path(command.policy))
        policy, folder = opened.policy("best"), opened.path.resolve()
    except RunError as error:
        raise InputError(f"`policy` must be random, constant or the folder of a run. {error}") from error
    from vlmrm_gym.tools.train.evaluation import run_actions  # deferred: loads torch

    act = run_actions(folder, env, command.id, trust_code=command.trust_code)
    return folder.name, hashlib.blake2b(policy.read_bytes(), digest_size=8).hexdigest(), lambda seed: act


def _describe_env(command: Dataset, env: gym.Env[Any, Any], settings: dict[str, Any]) -> EnvSpec | None:
    """Make the `EnvSpec` for Minari, with the first reward for IDs of this package; None if unknown."""
    task = find_task(command.id or "")
    if task is None:
        return env.spec
    if not settings["rewards"]:
        return None
    spec = copy.deepcopy(gym.spec(task.id))
    views = {name: settings[name] for name in ("camera", "combine_views") if settings[name] is not None}
    spec.kwargs |= {**views, "reward": settings["rewards"][0], "episode_length": settings["steps"]}
    return spec
