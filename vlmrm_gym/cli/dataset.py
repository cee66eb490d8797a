"""The command `vlmrm-gym dataset`: rollouts with the rewards of prompts, as a Minari dataset."""

import copy
import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import tyro
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym.audit.prompts import Column, load_prompts, open_queue
from vlmrm_gym.capture import StateView
from vlmrm_gym.datasets.folder import DatasetFolder, check_spaces, to_buffer
from vlmrm_gym.datasets.summary import print_summary
from vlmrm_gym.errors import InputError
from vlmrm_gym.media.numbered_video import save_numbered_video
from vlmrm_gym.registration import find_task
from vlmrm_gym.rendering.states import States
from vlmrm_gym.rewards.clip_options import CLIPFields
from vlmrm_gym.rewards.specification import CLIP
from vlmrm_gym.rewards.views import CombineViews
from vlmrm_gym.rollouts.environments import make_unscored_env, time_limit
from vlmrm_gym.rollouts.play import Policy, constant_actions, play, random_actions, run_actions
from vlmrm_gym.terminal import say
from vlmrm_gym.training.config_types import Cameras, check_cameras
from vlmrm_gym.training.run_folder import RunError, RunFolder
from vlmrm_gym.training.spec_fields import spec_settings, with_spec_fields

DEFAULT_FPS = 30
"""Frames per second of the videos, if the environment does not say."""


_FIELDS: Any = with_spec_fields(CLIPFields, without=("prompt", "baseline"))


@dataclass(kw_only=True)
class Dataset(_FIELDS):
    """Record rollouts with their rewards as a Minari dataset.

        vlmrm-gym dataset VLMRM/CartPole-v1 --out poles --episodes 20 --policy constant --frames
        vlmrm-gym dataset Ant-v5 --out ants --steps 200 --prompt "an ant on its back" --model ViT-B-32/laion2b_s34b_b79k
        vlmrm-gym dataset VLMRM/CartPole-v1 --out best --policy runs/CartPole-v1__DQN__0__1700000000

    Each state is scored once, for all prompts. The rewards of an episode are those of the first prompt; infos have the
    rewards of all prompts, the environment's own, success and the captured states. Episode i has the seed --seed + i.

    FOLDER/data is the dataset: minari.MinariDataset("FOLDER/data"). FOLDER/labels.csv has the success of every step,
    empty where the environment does not say it: fill it in by hand, with the videos of --frames.

    After Ctrl-C or a crash, the same command records the missing episodes.
    """

    id: Annotated[str | None, tyro.conf.Positional] = None
    """a registered ID: of this package, or any other that renders, such as Ant-v5, or module:ID"""
    env: str | None = None
    """in place of an ID: "package.module:function", which returns an environment made with render_mode="rgb_array" """
    out: Path
    """the folder to write"""
    policy: str = "random"
    """random, constant (one action for a whole episode), or the folder of a run (its best policy, deterministic)"""
    trust_code: bool = False
    """run the code that the run's configuration names: an environment, as module:name, or in its env_kwargs"""
    episodes: int = 10
    """number of episodes"""
    steps: int | None = None
    """steps of an episode, unless the environment ends it before (None: the environment's own time limit)"""
    seed: int = 0
    """of the first episode; the others' follow"""
    prompt: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """what should be seen; repeat --prompt for more of them (none: the task's own)"""
    baseline: str | None = None
    """the scene without the goal, for all prompts; used for alpha above 0 (None: the task's)"""
    device: str = "auto"
    """where the model runs: auto, cpu, cuda, cuda:1 or mps"""
    camera: Cameras | None = None
    """MuJoCo only: one camera or several, as in reward.camera of a configuration (None: the task's, else the
    environment's)"""
    combine_views: str | None = None
    """how the rewards of several cameras make one: min, mean, or your own "package.module:function" (None: min)"""
    frames: bool = False
    """write a video of each episode, whose frames show the number of their step"""
    overwrite: bool = False
    """replace a dataset that is complete or has other settings, its labels included"""


def record_dataset(command: Dataset) -> None:
    """Run the command.

    Raises:
        InputError: A setting, the environment, the policy or the output folder cannot be used.
        RunError: The policy of a run cannot be read.
        KeyboardInterrupt: Ctrl-C. The finished episodes stay in the folder.
    """
    _check_numbers(command)
    with ExitStack() as opened:
        env = opened.enter_context(closing(make_unscored_env(command.id, command.env, command.steps)))
        check_spaces(env)
        steps = command.steps or time_limit(command.id, env)
        if steps is None:
            raise InputError(
                "`steps` must be given: this environment has no time limit. Pass --steps 200, for example."
            )
        specs, camera = _make_specs(command), _choose_camera(command)
        try:
            view = opened.enter_context(closing(StateView(env, camera)))
        except (DependencyNotInstalled, ValueError) as error:
            raise InputError(str(error)) from error
        behaviour = _find_behaviour(command, env)
        settings = {
            **{name: getattr(command, name) for name in ("id", "env", "episodes", "seed", "device")},
            **{one.name: getattr(command, one.name) for one in fields(_FIELDS)},
            "policy": behaviour.name,
            "policy_weights": behaviour.weights,
            "steps": steps,
            "prompt": [spec.prompt for spec in specs],
            "baseline": specs[0].baseline if specs else None,
            "camera": camera,
            "combine_views": command.combine_views,
            "frames": command.frames,
        }
        folder = DatasetFolder(command.out.resolve())
        folder.check(settings, overwrite=command.overwrite)
        score = None
        if specs and (command.overwrite or folder.missing(command.episodes)):
            score = _make_scorer(command, specs, view, opened)

        def record(episode: int) -> None:
            seed = command.seed + episode
            rollout = play(env, view, behaviour.act(seed), seed=seed, steps=steps, behaviour=behaviour.name)
            states = States.concatenate([rollout.initial, rollout.states])
            rewards = None if score is None else score(states)
            if states.changes is not None:
                folder.write_scene_changes(episode, states.changes)
            if command.frames:
                fps = env.metadata.get("render_fps") or DEFAULT_FPS
                folder.write_video(episode, partial(save_numbered_video, view, rollout.states, episode, fps))
            folder.add(episode, to_buffer(rollout, seed, rewards), env)

        with folder.locked():
            folder.begin(settings, overwrite=command.overwrite)
            _record_missing(folder, command.episodes, record)
            folder.finish(env, _describe_env(command, env, settings), _metadata(folder, settings), command.seed)
    print_summary(folder)


def _record_missing(folder: DatasetFolder, episodes: int, record: Callable[[int], None]) -> None:
    missing = folder.missing(episodes)
    try:
        with tqdm(total=episodes, initial=episodes - len(missing), unit=" episodes") as progress:
            for episode in missing:
                record(episode)
                progress.update()
    except (KeyboardInterrupt, OSError):
        done = episodes - len(folder.missing(episodes))
        say(f"{done} of {episodes} episodes are done. The same command records the others.", error=True)
        raise


def _check_numbers(command: Dataset) -> None:
    for name, least in (("episodes", 1), ("steps", 1), ("seed", 0)):
        value = getattr(command, name)
        if value is not None and not least <= value < 2**31:
            raise InputError(f"`{name}` must be from {least} to {2**31 - 1}. Received {value}.")


def _make_specs(command: Dataset) -> list[CLIP]:
    """The rewards; none without a prompt."""
    task = None if command.id is None else find_task(command.id)
    prompts = command.prompt or (() if task is None or task.prompt is None else (task.prompt,))
    if len(set(prompts)) < len(prompts):
        raise InputError(f"Each `prompt` must be a different one. Received {', '.join(map(repr, prompts))}.")
    baseline = command.baseline or (task.baseline if task is not None and command.alpha else None)
    try:
        given = {**spec_settings(CLIPFields, command), "baseline": baseline}
        return [CLIP(**{**given, "prompt": prompt}) for prompt in prompts]
    except ValueError as error:
        raise InputError(str(error)) from error


def _choose_camera(command: Dataset) -> Any:
    if command.camera is None:
        task = None if command.id is None else find_task(command.id)
        return None if task is None else task.camera
    try:
        return check_cameras(command.camera)
    except ValueError as error:
        raise InputError(str(error)) from error


def _make_scorer(
    command: Dataset, specs: Sequence[CLIP], view: StateView, opened: ExitStack
) -> Callable[[States], NDArray[np.float32]]:
    """A function from B states to their rewards, float32 (B, P)."""
    try:
        combine = None if command.combine_views is None else CombineViews(command.combine_views, view.num_views)
        if combine is not None and combine.is_random:
            raise InputError('`combine_views` must be "min", "mean" or a function here. Received \'random\'.')
    except ValueError as error:
        raise InputError(str(error)) from error
    encoder, heads = load_prompts(specs, command.device)
    queue = opened.enter_context(closing(open_queue(encoder, view.make_renderer, view.num_views)))
    columns = [Column(head, combine) for head in heads]

    def score(states: States) -> NDArray[np.float32]:
        features = queue.features(states)
        return np.stack([column(features) for column in columns], axis=1).astype(np.float32)

    return score


@dataclass(frozen=True)
class _Behaviour:
    name: str
    """"random", "constant", or the name of a run."""
    act: Callable[[int], Policy]
    """From the seed of an episode to its policy."""
    weights: str | None = None
    """Digest of the file of a run's policy."""


def _find_behaviour(command: Dataset, env: gym.Env[Any, Any]) -> _Behaviour:
    if command.policy in ("random", "constant"):
        make = random_actions if command.policy == "random" else constant_actions
        # The environment's own generator has the seed alone: these streams are independent of it.
        return _Behaviour(command.policy, lambda seed: make(env.action_space, np.random.default_rng([seed, 1])))
    folder = Path(command.policy).resolve()
    try:
        policy = RunFolder.open(folder).policy("best")
    except RunError as error:
        raise InputError(f"`policy` must be random, constant or the folder of a run. {error}") from error
    act = run_actions(folder, env, command.id, trust_code=command.trust_code)
    return _Behaviour(folder.name, lambda seed: act, hashlib.blake2b(policy.read_bytes(), digest_size=8).hexdigest())


def _describe_env(command: Dataset, env: gym.Env[Any, Any], settings: dict[str, Any]) -> EnvSpec | None:
    """What Minari makes an environment from, scored by the first prompt for IDs of this package; None if unknown."""
    task = None if command.id is None else find_task(command.id)
    if task is None:
        return env.spec
    if not settings["prompt"]:
        return None
    spec = copy.deepcopy(gym.spec(task.id))
    names = (*(one.name for one in fields(CLIPFields)), "camera", "combine_views")
    options = {name: settings[name] for name in names if settings[name] is not None}
    spec.kwargs |= {**options, "prompt": settings["prompt"][0], "episode_length": settings["steps"]}
    return spec


def _metadata(folder: DatasetFolder, settings: dict[str, Any]) -> dict[str, Any]:
    """Minari's metadata. The ID is the folder's name where that has the form of one."""
    subject = settings["id"] or settings["env"]
    made_up = re.sub(r"[^a-zA-Z0-9]+", "-", f"{subject} {settings['policy']}").strip("-") + "-v0"
    return {
        "dataset_id": folder.dataset_id or made_up,
        "algorithm_name": settings["policy"],
        "description": f"Made by `vlmrm-gym dataset`: {subject}, policy {settings['policy']}.",
        "prompts": settings["prompt"],
    }
