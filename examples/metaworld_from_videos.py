"""Meta-World from videos alone: scripted policies are recorded, a reward is learned from the recordings, SAC from it.

python -m pip install -e ".[train]" && python -m pip install --no-deps metaworld==3.1.1 mujoco==3.3.0 packaging
python examples/metaworld_from_videos.py --task drawer-close-v3 --seed 1
python examples/metaworld_from_videos.py --task drawer-close-v3 --seed 1 --reward sparse

The folder runs/TASK__recordings__SEED gets videos/, others/ and reward/ (see its curves.png), which are made once;
runs/TASK__REWARD__SEED gets evaluations.csv and model.zip. Success is Meta-World's own flag; the agent sees its
observations. No action of a recording is looked at.
"""

import csv
import sys
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import imageio.v3 as iio
import metaworld  # noqa: F401  # pyright: ignore[reportMissingImports] (registers its IDs)
import numpy as np
import torch
import tyro
from metaworld.policies import ENV_POLICY_MAP  # pyright: ignore[reportMissingImports]
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

import vlmrm_gym
from vlmrm_gym.sb3 import ActionRepeatNoise, DeferredReplayBuffer, RefineCallback, RunningNormExtractor, VLMVecEnv
from vlmrm_gym.states import StateView

PIXELS = 192
CAMERA = "corner2"
GAMMA, RATE, ALPHA, LEARNING_STARTS = 0.98, 1e-3, 0.05, 2_000
FROM_VIDEOS = ("videos", "place")
"""Rewards that are learned from recordings."""


@dataclass
class Args:
    """Learn a task of Meta-World from recordings of a scripted policy."""

    task: str = "drawer-close-v3"
    """the name of a task, see metaworld.policies.ENV_POLICY_MAP"""
    reward: Literal["videos", "place", "sparse", "dense"] = "videos"
    """place: the place of each state on the way from the beginning (0) to the end (1) of the recordings, beside the
    success; videos: the same, refined while the agent learns: places in episodes that fail count less; sparse: the
    success alone; dense: Meta-World's own reward"""
    videos: int = 10
    """recordings of the task being done"""
    others: int = 6
    """recordings of random behaviour that fails, in which nothing counts as progress"""
    encoder: str = "cnn"
    """see `vlmrm-gym fit --videos --help`"""
    repeat: int = 2
    """steps for which an action is repeated, as in DrQ-v2; the states in between are not drawn"""
    steps: int = 200_000
    """steps of Meta-World in the training"""
    episode_length: int = 200
    """steps of an episode"""
    evaluate_every: int = 20_000
    """steps between evaluations"""
    episodes: int = 50
    """episodes of the last evaluation; those before have 10"""
    seed: int = 1
    """of the recordings, the reward and the agent"""
    threads: int = 1
    """of torch"""
    out: Path = Path("runs")
    """where the folder of the run is made"""


class Task(gym.Wrapper):
    """A task of Meta-World whose goal is drawn anew in each episode."""

    def __init__(self, args: Args, seed: int) -> None:
        size = {"width": PIXELS, "height": PIXELS, "camera_name": CAMERA}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.make(
                "Meta-World/MT1",
                env_name=args.task,
                seed=seed,
                render_mode="rgb_array",
                max_episode_steps=args.episode_length,
                disable_env_checker=True,
                **size,
            )
        super().__init__(env)
        self._is_dense, self._repeat = args.reward == "dense", args.repeat

    def step(self, action: Any) -> Any:
        """Repeat the action. The reward is the success, unless Meta-World's own is asked for."""
        total, success, repeated = 0.0, False, 0
        while True:
            observation, reward, terminated, truncated, info = self.env.step(action)
            total, success, repeated = total + float(reward), success or bool(info["success"]), repeated + 1
            if terminated or truncated or repeated == self._repeat:
                break
        info = {**info, "success": success}
        return observation, total if self._is_dense else float(success), terminated, truncated, info


def record(args: Args, folder: Path, count: int, *, succeeds: bool) -> None:
    """Record successes of the scripted policy, to 20 steps after the first, or failures of random actions, as MP4."""
    folder.mkdir(parents=True, exist_ok=True)
    env = Task(args, args.seed + (1_000 if succeeds else 3_000))
    rng = np.random.default_rng(args.seed)
    with closing(env), closing(StateView(env)) as view, tqdm(total=count, unit=" videos") as bar:
        number, tries = 0, 0
        while number < count:
            tries += 1
            if tries > 20 * count:
                sys.exit(f"Only {number} of {20 * count} episodes were such as {folder} is to have.")
            observation, _ = env.reset()
            view.reset()
            policy, action = ENV_POLICY_MAP[args.task](), np.zeros(4)
            states, since = [view.capture()], 0
            while since < 20 and len(states) <= args.episode_length // args.repeat:
                if succeeds:
                    action = policy.get_action(observation)
                elif len(states) % (10 if number % 2 else 30) == 1:  # it is held, or the arm stays where it is
                    action = rng.uniform(-1.5, 1.5, 4)
                observation, _, _, _, info = env.step(np.clip(action, -1, 1).astype(np.float32))
                states.append(view.capture())
                since += bool(info["success"] or since)
            if bool(since) is not succeeds:
                continue
            rows, changes = zip(*states, strict=True)
            iio.imwrite(folder / f"{number:02}.mp4", view.draw(np.stack(rows), changes), fps=30)
            number += 1
            bar.update()


def learn_reward(args: Args) -> vlmrm_gym.Demonstrations:
    """Record and fit, unless an earlier run with this task and seed has."""
    folder = args.out / f"{args.task}__recordings__{args.seed}"
    if not (folder / "reward").exists():
        record(args, folder / "videos", args.videos, succeeds=True)
        record(args, folder / "others", args.others, succeeds=False)
        vlmrm_gym.fit_demonstrations(
            folder / "videos",
            negatives=folder / "others" if args.others else None,
            encoder=args.encoder,
            measure="place",
            out=folder / "reward",
            seed=args.seed,
        )
    return vlmrm_gym.Demonstrations.load(folder / "reward")


class Evaluate(BaseCallback):
    """Plays the deterministic agent, counts the episodes with a success at any time, and keeps a table."""

    def __init__(self, args: Args, table: Path) -> None:
        super().__init__()
        self._args, self._table = args, table
        self._env = Task(args, args.seed + 2_000)

    def _on_step(self) -> bool:
        steps = self.num_timesteps * self._args.repeat
        if steps % self._args.evaluate_every == 0:
            self.play(steps, self._args.episodes if steps >= self._args.steps else 10)
        return True

    def play(self, steps: int, episodes: int) -> None:
        """Play so many episodes after these steps."""
        successes = 0
        for _ in range(episodes):
            observation, _ = self._env.reset()
            done = succeeded = False
            while not done:
                action, _ = self.model.predict(observation, deterministic=True)
                observation, _, terminated, truncated, info = self._env.step(action)
                succeeded |= bool(info["success"])
                done = terminated or truncated
            successes += succeeded
        with self._table.open("a", newline="") as file:
            csv.writer(file).writerow([steps, episodes, successes / episodes])
        print(f"step {steps:,}: success {successes / episodes:.0%} of {episodes} episodes", flush=True)


def main(args: Args) -> None:
    """Record, learn the reward, learn the task."""
    torch.set_num_threads(args.threads)
    folder = args.out / f"{args.task}__{args.reward}__{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "evaluations.csv"
    table.write_text("step,episodes,success\n")
    options: dict[str, Any] = {"learning_starts": LEARNING_STARTS, "learning_rate": RATE, "gamma": GAMMA}
    options["seed"] = args.seed
    options["ent_coef"] = f"auto_{ALPHA}"  # SAC's 1.0 promises 2.8 a step where nobody has been: more than success pays
    options["action_noise"] = ActionRepeatNoise(4, sigma=1.0, hold=10, steps=10_000)  # random steps alone go nowhere
    options["policy_kwargs"] = {"features_extractor_class": RunningNormExtractor}  # objects move less than the hand
    callbacks: list[BaseCallback] = [Evaluate(args, table)]
    if args.reward in FROM_VIDEOS:
        envs = vlmrm_gym.VLMRewardVectorEnv(
            [lambda: Task(args, args.seed)],
            reward=learn_reward(args),
            task_reward_weight=1.0,
            autoreset_mode="SameStep",
            score_every=2,  # of two states one is drawn
            return_features=True,
        )
        env: Any = VLMVecEnv(envs)
        options["replay_buffer_class"] = DeferredReplayBuffer
        if args.reward == "videos":
            callbacks.append(RefineCallback())
    else:
        env = Task(args, args.seed)
    model = SAC("MlpPolicy", env, **options)
    try:
        model.learn(args.steps // args.repeat, callback=callbacks, progress_bar=sys.stderr.isatty())
    finally:
        model.save(folder / "model.zip")
        env.close()


if __name__ == "__main__":
    main(tyro.cli(Args))
