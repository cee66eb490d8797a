r"""Learning a reward from comparisons: seconds of a round, steps/s between rounds, and what an endpoint is asked.

    python benchmarks/preferences.py
    python benchmarks/preferences.py --rows round
    python benchmarks/preferences.py --rows training --steps 4_000 --rounds 5
    python benchmarks/preferences.py --rows endpoint --env-id VLMRM/Humanoid-kneel-v0 --size 224 224
    python benchmarks/preferences.py --rows endpoint --image-tokens 255 --description-tokens 200 --price 2.5 10

Everything runs in one process on one thread, without workers. Seconds are those of the process's CPU time, which other
programs on the machine disturb less than the clock.

round: rounds on episodes of random actions, until `--questions` have been asked, each fitted to all answers so far.
The task's grade answers, and its time does not count. "draw, encode, fit" is `PreferenceLearner.run_round`; "relabel"
is of a buffer with `--transitions` transitions whose features are random numbers; "picture" is `write_round`, which a
round does not need.

training: DQN of Stable-Baselines3 with `DeferredReplayBuffer`, after the only round, and the same with
`vlmrm_gym.CLIP`. The two take turns of `--steps` steps; medians over the turns. Once with a gradient step a rollout,
which has 4 steps of each of 8 environments, and once without any.

endpoint: an `EndpointLabeler` asks about `--sent` pairs of random episodes. A server on the loopback counts what it
receives, and answers "1" to all of it; the table has that times questions / sent. Text tokens are those of CLIP's
tokenizer, which needs no download; tokenizers of other models have other counts. Tokens of images and of descriptions
depend on the model and are not counted: a description (two stages only) is an answer first, and then a part of the next
question. Pass what yours takes, and its prices, for the cost.
"""

import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
import tyro
from open_clip.tokenizer import SimpleTokenizer
from relabel import plain_buffer
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from turns import in_turns

import vlmrm_gym
from vlmrm_gym._util.system import read_commit
from vlmrm_gym.envs.make import find_task, make_vector_env
from vlmrm_gym.learning import Answer, EndpointLabeler, GroundTruthLabeler, Pair, PreferenceLearner
from vlmrm_gym.learning.pictures import write_round
from vlmrm_gym.sb3 import DeferredReplayBuffer, PreferenceCallback, make_vec_env

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
from vlm_server import VLMServer, completion, read

Rows = Literal["round", "training", "endpoint"]


@dataclass(frozen=True)
class Args:
    rows: tuple[Rows, ...] = ("round", "training", "endpoint")
    """what is measured"""
    env_id: str = "VLMRM/CartPole-v1"
    """the task; for the rows of training one with discrete actions"""
    pairs: int = 50
    """pairs of a round"""
    questions: int = 500
    """pairs of all rounds, and of the endpoint"""
    transitions: int = 100_000
    """transitions in the buffer that is relabelled"""
    steps: int = 1_600
    """steps of a turn of training"""
    rounds: int = 3
    """turns of training"""
    sent: int = 50
    """pairs that the endpoint is asked about"""
    size: tuple[int, int] | None = None
    """height and width of the images that the endpoint gets; None: as the environment draws"""
    image_tokens: int | None = None
    """tokens that an image takes"""
    description_tokens: int | None = None
    """tokens of a description"""
    price: tuple[float, float] | None = None
    """of a million tokens in and out"""


def read_prompt(env_id: str) -> str:
    """The prompt of a task of this package."""
    task = find_task(env_id)
    assert task is not None
    return str(task.prompt)


@contextmanager
def played(args: Args, states: int) -> Iterator[Any]:
    """Environments whose reward is yet to be learned, after random episodes with at least so many states."""
    envs: Any = make_vector_env(args.env_id, 8, reward=vlmrm_gym.Preference(prompt=read_prompt(args.env_id)))
    envs.reset(seed=0)
    envs.action_space.seed(0)
    while sum(map(len, envs.episode_log.episodes)) < states:
        envs.step(envs.action_space.sample())
    yield envs
    envs.close()


class Timed:
    """The task's grade, and the seconds that it takes."""

    answer_key = "timed"

    def __init__(self) -> None:
        self.labeler, self.seconds = GroundTruthLabeler(), 0.0

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer]]:
        """As any labeler."""
        answered, self.seconds = timed(lambda: list(self.labeler.answers(pairs)))
        return iter(answered)


def measure_rounds(args: Args) -> None:
    """Seconds of the parts of rounds: the median, and the last, which fits the most answers."""
    labeler, parts = Timed(), dict[str, list[float]]()
    with played(args, 2_000) as envs, TemporaryDirectory() as folder:
        learner, buffer = PreferenceLearner(envs, labeler), None
        for _ in range(args.questions // args.pairs):
            outcome, seconds = timed(lambda: learner.run_round(args.pairs))
            head = learner.head
            if head is None:
                continue  # there is nothing to relabel with
            buffer = buffer or plain_buffer(args.transitions, math.prod(head.shape), "float32")
            _, relabel = timed(lambda b=buffer, h=head: b.relabel(h))
            _, picture = timed(lambda o=outcome: write_round(o.pairs, o.answers, Path(folder) / "round.png"))
            fitted = seconds - labeler.seconds
            figures = {"draw, encode, fit": fitted, "relabel": relabel, "both": fitted + relabel, "picture": picture}
            for name, figure in figures.items():
                parts.setdefault(name, []).append(figure)
    count = len(parts["both"])
    print(f"\n{count} rounds of {args.pairs} pairs, {args.transitions:,} transitions\n")
    print("| seconds | median | last | most |\n|---|---|---|---|")
    for name, own in parts.items():
        print(f"| {name} | {statistics.median(own):.2f} | {own[-1]:.2f} | {max(own):.2f} |")
    print(f"\nGoal: at most 5 s. {'Met' if max(parts['both']) <= 5 else 'Missed'}.")


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds of CPU time."""
    began = time.process_time()
    return call(), time.process_time() - began


class Watch(BaseCallback):
    """Steps per second of CPU time."""

    def _on_training_start(self) -> None:
        self.began, self.first = time.process_time(), self.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.rate = (self.model.num_timesteps - self.first) / (time.process_time() - self.began)


def make_trainee(args: Args, reward: Any, gradient_steps: int) -> Callable[[], float]:
    """A training that is beyond its start, and its round if it has one. Calls take a turn and return steps/s."""
    envs = make_vec_env(args.env_id, 8, seed=0, reward=reward)
    start = 1_600
    model = DQN(
        "MlpPolicy",
        envs,
        replay_buffer_class=DeferredReplayBuffer,
        learning_starts=start,
        train_freq=4,
        gradient_steps=gradient_steps,
        buffer_size=100_000,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=0,
    )
    callbacks: list[BaseCallback] = []
    if isinstance(reward, vlmrm_gym.Preference):
        callbacks = [PreferenceCallback(GroundTruthLabeler(), every=1, pairs=args.pairs, total=args.pairs)]
    model.learn(start + 400, callback=callbacks)

    def take_turn() -> float:
        watch = Watch()
        model.learn(args.steps, callback=[*callbacks, watch], reset_num_timesteps=False)
        return watch.rate

    return take_turn


def measure_training(args: Args) -> None:
    """Steps/s with both rewards, in turns, and their ratio."""
    prompt = read_prompt(args.env_id)
    rewards = {"CLIP": vlmrm_gym.CLIP(prompt=prompt), "Preference": vlmrm_gym.Preference(prompt=prompt)}
    print(f"\nSteps per second of CPU time, medians of {args.rounds} turns of {args.steps:,} steps\n")
    print("| | CLIP | Preference | ratio |\n|---|---|---|---|")
    for name, gradient_steps in {"a gradient step a rollout": 1, "no gradient steps": 0}.items():
        trainees = {own: make_trainee(args, reward, gradient_steps) for own, reward in rewards.items()}
        clip, preference = (statistics.median(rates) for rates in in_turns(trainees, args.rounds).values())
        print(f"| {name} | {clip:,.0f} | {preference:,.0f} | {preference / clip:.2f} |", flush=True)
    print("\nGoal: at least 0.9.")


class CountingServer(VLMServer):
    """Counts text tokens and images, and always answers "1"."""

    def __init__(self, *, logprobs: bool) -> None:
        super().__init__(logprobs="tokens" if logprobs else None)
        self.tokenizer, self.text_tokens, self.images = SimpleTokenizer(), 0, Counter[tuple[int, int]]()

    def complete(self, body: Any, number: int) -> dict[str, Any]:
        """Answer a request."""
        images, texts = read(body["messages"])
        with self.lock:
            self.text_tokens += len(self.tokenizer.encode(texts))
            self.images.update(image.shape[1::-1] for image in images)
        return completion("1", [("1", [("1", 1.0)])] if self.logprobs else None)


def count_requests(args: Args) -> None:
    """What a run asks an endpoint, by the way of asking."""
    ways: dict[str, tuple[bool, dict[str, Any]]] = {
        "two stages": (False, {"stages": 2}),
        "one stage, log probabilities": (True, {"stages": 1}),
        "one stage, 5 votes": (False, {"stages": 1, "votes": 5}),
    }
    times = args.questions / args.sent
    print(f"\n{args.questions:,} questions, in both orders\n")
    print("| | calls | text tokens in, without descriptions | images | pixels of an image | descriptions | cost |")
    print("|---|---|---|---|---|---|---|")
    with played(args, 4 * args.sent) as envs:
        for name, (logprobs, settings) in ways.items():
            with CountingServer(logprobs=logprobs) as server:
                labeler = EndpointLabeler(model="m", base_url=server.url, api_key_env=None, size=args.size, **settings)
                PreferenceLearner(envs, labeler).run_round(args.sent)
                labeler.close()
            sizes = ", ".join(f"{width} x {height}" for width, height in server.images)
            described = server.requests // 2 if settings["stages"] == 2 else 0
            text = server.text_tokens - described  # the description was "1"
            counts = [round(times * one) for one in (server.requests, text, sum(server.images.values()), described)]
            calls, text, images, described = counts
            cells = f"{calls:,} | {text:,} | {images:,} | {sizes} | {described:,}"
            print(f"| {name} | {cells} | {cost(args, *counts)} |", flush=True)


def cost(args: Args, calls: int, text: int, images: int, described: int) -> str:
    """What the tokens cost, if prices are known. An answer that is no description is one token."""
    if args.price is None or args.image_tokens is None or (described and args.description_tokens is None):
        return "unknown"
    descriptions = described * (args.description_tokens or 0)
    tokens_in = text + images * args.image_tokens + descriptions
    tokens_out = descriptions + calls - described
    return f"{(tokens_in * args.price[0] + tokens_out * args.price[1]) / 1e6:.2f}"


def main(args: Args) -> None:
    torch.set_num_threads(1)
    print(f"{args.env_id}, vlmrm_gym {vlmrm_gym.__version__}, commit {read_commit() or 'unknown'}")
    measures = {"round": measure_rounds, "training": measure_training, "endpoint": count_requests}
    for row in args.rows:
        measures[row](args)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
