"""Load, play, evaluate and record policies."""

import pickle
import warnings
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file, recursive_getattr
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.untrusted import check_archive, check_file
from vlmrm_gym._util.validation import short_repr, truncate
from vlmrm_gym.data import videos
from vlmrm_gym.data.late import read_late
from vlmrm_gym.data.rollouts import Policy
from vlmrm_gym.data.statistics import Episodes, play_episodes
from vlmrm_gym.envs.make import is_function
from vlmrm_gym.sb3 import VLMVecEnv
from vlmrm_gym.tools.train.algorithms import algorithm_class, algorithm_options, parameters
from vlmrm_gym.tools.train.checks import read_settings
from vlmrm_gym.tools.train.config import Config
from vlmrm_gym.tools.train.config_file import constructing, read_config_file
from vlmrm_gym.tools.train.environments import make_envs, make_video_env
from vlmrm_gym.tools.train.run_folder import RunError, RunFolder

NUM_EVAL_ENVS = 16


def load_policy(config: Config, path: Path) -> BaseAlgorithm:
    """Build the algorithm of a configuration, which has its defaults filled in, and load the weights of a file."""
    algorithm, policy_name = config.rl.algorithm or "", config.rl.policy_name or ""
    config = replace(config, reward=replace(config.reward, name="ground_truth"))  # avoids loading a reward model
    envs = VLMVecEnv(make_envs(config, config.num_envs), success_threshold=config.success_threshold)
    with closing(envs), constructing(config, "rl"):
        options = algorithm_options(config, envs)
        if "buffer_size" in parameters(algorithm):
            options["buffer_size"] = 1
        model = algorithm_class(algorithm)(policy_name, envs, **options)
    load_weights(model, path)
    return model


def load_weights(model: BaseAlgorithm, path: Path) -> None:
    """Load networks and optimisers from a file saved by Stable-Baselines3, as data: it may be a stranger's."""
    what = f"The policy {path} is damaged, or not a {type(model).__name__} of this run"
    try:
        with warnings.catch_warnings(action="ignore"):  # PyTorch's explain how to execute pickles anyway
            check_archive(path, check_file(path))
            _, parameters, variables = load_from_zip_file(path, load_data=False, device=model.device)
        if not all(tensor.isfinite().all() for tensor in parameters["policy"].values()):
            raise ValueError("its weights must be finite.")
        model.set_parameters(parameters)
        with torch.no_grad():
            for name in model._get_torch_save_params()[1]:
                recursive_getattr(model, name).copy_((variables or {})[name])
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise RunError(f"{what}: it contains more than numbers and texts, so it was not read.") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunError(f"{what}: {truncate(reason)}") from error


def run_actions(folder: Path, env: gym.Env[Any, Any], id: str | None = None, *, trust_code: bool = False) -> Policy:
    """The deterministic policy of a trained run in `env`, which `id` names: the best by its reward, else the last.

    Only the weights are read, and the run's environment is made; its reward is not. `id` needs no trust.
    """
    run = RunFolder.open(folder)
    file = read_config_file(run.config_file)
    is_same = id is not None and file.config.id == id.removeprefix("vlmrm_gym:")
    if not (id is None or is_same or is_function(id) or file.problems):  # a function may make the run's environment
        rule = f"The run {folder} must be of {id}. Received one of {short_repr(file.config.id)}."
        raise InputError(f"{rule} Pass another run.")
    changes = {("track",): False, ("reward",): {"name": "ground_truth"}}
    config, _ = read_settings(run.config_file, changes, [("env_name",)] * is_same, trust_code=trust_code)
    model = load_policy(config, run.policy("best"))
    for name in ("observation_space", "action_space"):
        theirs, ours = getattr(model, name), getattr(env, name)
        if theirs != ours:
            raise InputError(
                f"The run {folder} must have been trained in the same environment. Its {name.replace('_', ' ')} is "
                f"{theirs}, and this environment's is {ours}. Pass another run."
            )
    return _policy(model)


def evaluate(config: Config, model: BaseAlgorithm, episodes: int, *, seed: int) -> Episodes:
    """Play episodes with the deterministic policy. `seed` is of the first episode; later ones count up."""
    num_envs = min(episodes, NUM_EVAL_ENVS)
    with closing(make_envs(config, num_envs)) as envs:
        starts = tqdm(range(0, episodes, num_envs), unit=f" x {num_envs} episodes", leave=False)
        batches = [play_episodes(envs, _policy(model), seed=seed + start) for start in starts]
    names = (field.name for field in fields(Episodes))
    return Episodes(**{name: np.concatenate([getattr(one, name) for one in batches])[:episodes] for name in names})


def record_video(config: Config, model: BaseAlgorithm, path: Path, *, seed: int) -> None:
    """Write a video of one episode of the deterministic policy, with the reward drawn in."""
    title = config.id if config.reward.name == "ground_truth" else (config.reward.prompt or [config.id])[0]
    policy, frames, rewards, is_done = _policy(model), [], [], False
    with closing(make_video_env(config)) as envs:
        observations, _ = envs.reset(seed=seed)
        while not is_done:
            observations, _, terminations, truncations, infos = envs.step(policy(observations))
            frames.extend(envs.render() or ())
            is_done = bool(terminations[0] or truncations[0])
            for late in read_late(infos):
                rewards.extend(late.rewards)
    videos.save_video(path, frames, rewards, title=title)


def _policy(model: BaseAlgorithm) -> Policy:
    return lambda observation: model.predict(observation, deterministic=True)[0]
