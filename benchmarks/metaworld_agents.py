"""Meta-World with many agents at once, on one GPU: tasks, rewards and settings of examples/metaworld_from_videos.py.

python benchmarks/metaworld_agents.py door-open-v3:videos:1 door-open-v3:sparse:1 door-open-v3:dense:1

An agent is TASK:REWARD:SEED. All play their episodes, of the same length, in step; see batched_sac.py. Recordings and
rewards are made as the example makes them, or found where it left them.
"""

import csv
import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from batched_sac import Learner
from torch import Tensor
from tqdm import trange

from vlmrm_gym.learning import RefinedPlaceHead
from vlmrm_gym.rewards.distance import DistanceNetwork
from vlmrm_gym.sb3 import ActionRepeatNoise
from vlmrm_gym.scoring.select import interpolate
from vlmrm_gym.states import StateView

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from metaworld_from_videos import ALPHA, FROM_VIDEOS, GAMMA, LEARNING_STARTS, RATE, Task, learn_reward
from metaworld_from_videos import Args as Training

OBSERVATION, ACTION = 39, 4
EVERY = 2
"""Of so many states one is drawn, as in the example."""


@dataclass
class Args:
    """Train agents in step."""

    agents: Annotated[tuple[str, ...], tyro.conf.Positional]
    """each as TASK:REWARD:SEED, with a reward of the example"""
    steps: int = 200_000
    """steps of Meta-World, as in the example"""
    evaluate_every: int = 20_000
    """steps between evaluations of 10 episodes; the last has 50"""
    workers: int = multiprocessing.cpu_count()
    """processes that play and draw"""
    out: Path = Path("runs")
    """the folder of the example, with the recordings, and of agents.csv"""


class Shared:
    """Arrays that the workers share: the observations, actions and outcomes of N agents."""

    def __init__(self, count: int, episodes: int, length: int, name: str | None = None) -> None:
        shapes = {"observations": (count, OBSERVATION), "actions": (count, ACTION), "success": (count,)}
        shapes |= {"rewards": (count,), "places": (count, episodes, length)}
        sizes = [math.prod(shape) for shape in shapes.values()]
        self.memory = SharedMemory(name, create=name is None, size=4 * sum(sizes))
        parts = np.split(np.ndarray(sum(sizes), np.float32, self.memory.buf), np.cumsum(sizes)[:-1])
        self.observations, self.actions, self.success, self.rewards, self.places = (
            part.reshape(shape) for part, shape in zip(parts, shapes.values(), strict=True)
        )


class Player:
    """Plays an agent's task, and pays the places of its states."""

    def __init__(self, training: Training, number: int, shared: Shared) -> None:
        self._shared, self._number = shared, number
        self._tasks = {"train": Task(training, training.seed), "test": Task(training, training.seed + 2_000)}
        self._head = None
        if training.reward in FROM_VIDEOS:
            reward = learn_reward(training)
            self._view, self._model = StateView(self._tasks["train"]), reward.build()
            self._head = RefinedPlaceHead(DistanceNetwork.load(reward.head))
            self._is_refined = training.reward == "videos"
        self._states, self._features, self._places = list[Any](), list[Tensor](), list[Tensor]()

    def reset(self, kind: str) -> None:
        """Begin an episode, for training or as a test."""
        self._shared.observations[self._number], _ = self._tasks[kind].reset()
        self._length, self._succeeded = 0, False
        if kind == "train" and self._head is not None:
            self._view.reset()
            self._states = [self._view.capture()]

    def step(self, kind: str) -> None:
        """Take a step."""
        number, shared = self._number, self._shared
        shared.observations[number], reward, _, _, info = self._tasks[kind].step(shared.actions[number].copy())
        shared.rewards[number], shared.success[number] = float(reward), info["success"]
        self._length += 1
        self._succeeded |= bool(info["success"])
        if kind == "train" and self._head is not None and self._length % EVERY == 0:
            self._states.append(self._view.capture())

    @torch.no_grad()
    def pay(self, kind: str) -> None:
        """Write down the places of an episode, and of all before where the reward has been refined."""
        if self._head is None:
            return
        rows, changes = zip(*self._states, strict=True)
        drawn = torch.as_tensor(self._model.encode(self._view.draw(np.stack(rows), changes))).float().cpu().numpy()
        features = torch.from_numpy(interpolate(EVERY * np.arange(len(drawn)), drawn)[1:])
        self._features.append(features)
        self._places.append(self._head.network.places(features).clamp_min(0))
        done, places = len(self._features), self._shared.places[self._number]
        if not self._is_refined:
            places[done - 1] = self._places[-1]
            return
        if not self._succeeded:
            self._head.add(features[:, None].numpy())
        if is_due := done % 5 == 0 and self._head.num_failed > 0:
            with torch.enable_grad():
                self._head.fit()
        for number in range(done) if is_due else [done - 1]:
            places[number] = self._places[number] * self._head.likeness(self._features[number])


def work(
    numbers: list[int], trainings: list[Training], shape: tuple[int, int, int], name: str, pipe: Connection
) -> None:
    """Play the agents of these numbers, as the pipe says."""
    torch.set_num_threads(1)
    shared = Shared(*shape, name)
    players = [Player(training, number, shared) for number, training in zip(numbers, trainings, strict=True)]
    pipe.send(None)
    with suppress(EOFError):
        while True:
            command, kind = pipe.recv()
            for player in players:
                getattr(player, command)(kind)
            pipe.send(None)


def play(
    count: int, length: int, send: Callable[..., None], shared: Shared, learner: Learner, episodes: int
) -> np.ndarray:
    """The share of so many deterministic episodes with a success at any time, for each agent."""
    successes = np.zeros(count)
    for _ in range(episodes):
        send("reset", "test")
        succeeded = np.zeros(count, dtype=bool)
        for _ in range(length):
            shared.actions[:] = learner.choose(shared.observations, deterministic=True)
            send("step", "test")
            succeeded |= shared.success > 0
        successes += succeeded
    return successes / episodes


def main(args: Args) -> None:
    """Start the workers, train, and keep a table."""
    agents = sorted((agent.split(":") for agent in args.agents), key=lambda agent: agent[1] in ("sparse", "dense"))
    trainings = [Training(task=task, reward=reward, seed=int(seed), out=args.out) for task, reward, seed in agents]  # pyright: ignore[reportArgumentType]
    for training in trainings:
        if training.reward in FROM_VIDEOS:
            learn_reward(training)
    repeat = trainings[0].repeat
    count, length = len(agents), trainings[0].episode_length // repeat
    shape = (count, args.steps // repeat // length, length)
    shared, pipes = Shared(*shape), list[Any]()
    context = multiprocessing.get_context("spawn")
    for worker in range(min(args.workers, count)):
        pipe, other = context.Pipe()
        target = (
            range(worker, count, args.workers),
            trainings[worker :: args.workers],
            shape,
            shared.memory.name,
            other,
        )
        context.Process(target=work, args=target, daemon=True).start()
        pipes.append(pipe)

    def wait() -> None:
        for pipe in pipes:
            pipe.recv()

    def ask(command: str, kind: str = "train") -> None:
        for pipe in pipes:
            pipe.send((command, kind))

    def send(command: str, kind: str = "train") -> None:
        ask(command, kind)
        wait()

    torch.manual_seed(0)
    np.random.seed(0)  # of the noise
    rng, noise = np.random.default_rng(0), ActionRepeatNoise(count * ACTION, sigma=1.0, hold=10, steps=10_000)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = (OBSERVATION, ACTION)
    learner = Learner(count, shape[1] * length, sizes, gamma=GAMMA, rate=RATE, alpha=ALPHA, device=device)
    own = np.zeros(shape, np.float32)
    wait()
    start = time.perf_counter()
    with (args.out / "agents.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["task", "reward", "seed", "step", "episodes", "success", "place", "seconds"])
        for episode in trange(shape[1], unit=" episodes"):
            parts: list[list[np.ndarray]] = [[], [], []]
            send("reset")
            for step in range(episode * length, (episode + 1) * length):
                observations = shared.observations.copy()
                learns = step >= LEARNING_STARTS
                actions = learner.choose(observations) if learns else rng.uniform(-1, 1, (count, ACTION))
                shared.actions[:] = np.clip(actions + noise().reshape(count, ACTION), -1, 1)
                ask("step")
                if learns:
                    learner.update()  # while the workers play
                wait()
                own[:, episode, step % length] = shared.rewards
                for part, values in zip(parts, (observations, shared.actions, shared.observations), strict=True):
                    part.append(values.copy())
            send("pay")
            done = episode + 1
            learner.store([np.stack(part, 1) for part in parts], (own + shared.places)[:, :done].reshape(count, -1))
            if (steps := done * length * repeat) % args.evaluate_every == 0:
                episodes = 50 if steps >= args.steps else 10
                success = play(count, length, send, shared, learner, episodes)
                place = shared.places[:, max(0, done - 20) : done].mean((1, 2)).round(3)
                seconds = round(time.perf_counter() - start)
                for agent, *values in zip(agents, success, place, strict=True):
                    table.writerow([*agent, steps, episodes, *values, seconds])
                    print(*agent, steps, *values, flush=True)
                file.flush()
    for pipe in pipes:
        pipe.close()
    shared.memory.unlink()


if __name__ == "__main__":
    main(tyro.cli(Args))
