"""Tunes the head of a `TunedCLIP` to the successes in an episode log (FuRL, arXiv 2406.00645). Needs no RL library."""

import copy
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vlmrm_gym.episode_log import EpisodeLog
from vlmrm_gym.files import atomic_write
from vlmrm_gym.relabeling import find_featured
from vlmrm_gym.rendering.states import States
from vlmrm_gym.rewards.heads import Features, NewestHead, ViewsHead
from vlmrm_gym.rewards.tuned_clip import TunedCLIP
from vlmrm_gym.rewards.tuned_clip_model import TunedHead
from vlmrm_gym.tasks import REGISTERED
from vlmrm_gym.validation import check_integer, check_positive_integer, is_finite


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """How heads are tuned. The defaults are those of FuRL's code.

    Raises:
        ValueError: A value is out of its range; the message names the field.
    """

    gap: int = 10
    """Steps from the earlier to the later state of a success."""
    margin: float = 0.1
    """By how much the cosine similarity of the better state should be higher, above 0."""
    learning_rate: float = 1e-4
    """Of Adam."""
    batch_size: int = 256
    """Successes, and failures, of a gradient step."""
    capacity: int = 20_000
    """How many are kept of successes, and of failures: the newest."""

    def __post_init__(self) -> None:
        for name in ("gap", "batch_size", "capacity"):
            check_positive_integer(name, getattr(self, name))
        for name in ("margin", "learning_rate"):
            if not is_finite(value := getattr(self, name)) or value <= 0:
                raise ValueError(f"`{name}` must be a finite number above 0. Received {value!r}.")


def ranking_loss(better: torch.Tensor, worse: torch.Tensor, margin: float) -> torch.Tensor:
    """Mean of max(0, margin - (better - worse)) over cosine similarities, float32 (B,) each: float32 ().

    FuRL's code leaves the constant margin out of the terms above 0: the gradients are the same.
    """
    return (margin - better + worse).relu().mean()


def count_success_steps(success: NDArray[np.float64], threshold: float) -> int:
    """The number of an episode's steps that are a success: up to the first successful state, and on while they succeed.

    Args:
        success: float64 (T,), see `LoggedEpisode`.
        threshold: The minimum fraction of the steps that succeed; at least one must, in any case.

    Returns:
        0 if the episode is none.
    """
    succeeds = success == 1
    if not succeeds.any() or succeeds.mean() < threshold:
        return 0
    first = int(succeeds.argmax())
    lost = np.flatnonzero(~succeeds[first:])
    return first + int(lost[0]) if len(lost) else len(success)


def fit(
    head: TunedHead,
    successes: Features,
    failures: Features,
    gradient_steps: int,
    options: TuningOptions,
    rng: np.random.Generator,
) -> float:
    """Tune a head: later states of successes above earlier ones, and above states of failures.

    Args:
        head: Changed in place.
        successes: Features of later and earlier states, float32 (N, 2, V, D), N > 0.
        failures: Features of states of other episodes, float32 (M, V, D); there may be none.
        gradient_steps: How many; each is of a batch of both.
        options: How.
        rng: Draws the batches.

    Returns:
        The mean of the loss.
    """

    def draw(rows: Features) -> torch.Tensor:
        return torch.from_numpy(rows[rng.integers(len(rows), size=options.batch_size)])

    optimizer, losses = torch.optim.Adam(head.requires_grad_(True).parameters(), lr=options.learning_rate), []
    for _ in range(gradient_steps):
        later, earlier = head.cosine(draw(successes)).unbind(1)
        loss = ranking_loss(later, earlier, options.margin)
        if len(failures):
            loss = loss + ranking_loss(later, head.cosine(draw(failures)), options.margin)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    head.requires_grad_(False)
    return float(np.mean(losses))


class HeadTuner:
    """Tunes the head of vector environments, by two ranking losses, to the successes that their episode log has.

    States of successful episodes, up to the success, should be closer to the prompt than states of other episodes; and
    than the states `gap` steps before them. FuRL's second agent, and its images of the goal, are left out.

    Whoever calls `tune` relabels the replay buffer afterwards: `buffer.relabel(envs.head)`.

    Args:
        envs: Vector environments with a `TunedCLIP` that is yet to be learned, and `info["success"]`.
        success_threshold: Fraction of an episode's steps that must succeed. None: that of the task's record, if it has
            one; otherwise one step is enough.
        options: How.
        seed: Of the states that are drawn.

    Attributes:
        successes: Features of later and earlier states, float32 (N, 2, V, D).
        failures: Features of states of other episodes, float32 (N, V, D).

    Raises:
        ValueError: `envs` have another reward, or a parameter is out of its range.
    """

    def __init__(
        self, envs: Any, *, success_threshold: float | None = None, options: TuningOptions | None = None, seed: int = 0
    ) -> None:
        featured = find_featured(envs)
        if featured is None or not isinstance(featured.reward, TunedCLIP) or not featured.reward.learns:
            raise ValueError(
                "`envs` must be vector environments with a reward that is yet to be tuned: pass "
                f"reward=vlmrm_gym.TunedCLIP(prompt=...) where they are made. Received {envs}."
            )
        if success_threshold is not None and not (is_finite(success_threshold) and 0 <= success_threshold <= 1):
            raise ValueError(f"`success_threshold` must be None or from 0 to 1. Received {success_threshold!r}.")
        check_integer("seed", seed, minimum=0)
        spec = getattr(featured, "spec", None)
        task = None if spec is None else REGISTERED.get(spec.id)
        self.success_threshold = (task and task.success_threshold) if success_threshold is None else success_threshold
        self.newest: NewestHead = featured.head
        self.log: EpisodeLog = featured.episode_log
        self.options = options or TuningOptions()
        self._scorer, self._rng = featured.scorer, np.random.default_rng(seed)
        shape = featured.feature_shape
        self.successes: Features = np.empty((0, 2, *shape), dtype=np.float32)
        self.failures: Features = np.empty((0, *shape), dtype=np.float32)

    @property
    def head(self) -> TunedHead:
        """The newest head."""
        head = self.newest.head
        return head.head if isinstance(head, ViewsHead) else head  # pyright: ignore[reportReturnType]

    def tune(self, gradient_steps: int, draws: int = 100) -> dict[str, float]:
        """Draw states from the log, and use a head from now on that is tuned to these and those drawn before.

        Args:
            gradient_steps: See `fit`.
            draws: Number of pairs of states of successes, and of states of failures, that are drawn and encoded.

        Returns:
            What is worth logging, by name: `successes` is the number of successful episodes in the log. While there is
            none, nothing changes.

        Raises:
            ValueError: A number is below 1, or the environments do not report successes.
        """
        check_positive_integer("gradient_steps", gradient_steps)
        check_positive_integer("draws", draws)
        episodes, gap = self.log.episodes, self.options.gap
        if episodes and all(np.isnan(one.success).all() for one in episodes):
            raise ValueError('`envs` must report success, by info["success"]. Received episodes without.')
        counts = [count_success_steps(one.success, self.success_threshold or 0) for one in episodes]
        scalars = {"episodes": float(len(episodes)), "successes": float(np.count_nonzero(counts))}
        later = self._draw(draws, [np.arange(min(gap, count), count) for count in counts])
        other = self._draw(
            draws, [np.arange(0 if count else len(one)) for one, count in zip(episodes, counts, strict=True)]
        )
        if len(later):
            earlier = [(which, step - gap) for which, step in later]
            encoded = self._encode(episodes, [*later, *earlier, *other])
            pairs = np.stack([encoded[: len(later)], encoded[len(later) : 2 * len(later)]], axis=1)
            kept = -self.options.capacity
            self.successes = np.concatenate([self.successes, pairs])[kept:]
            self.failures = np.concatenate([self.failures, encoded[2 * len(later) :]])[kept:]
            head = copy.deepcopy(self.head)
            scalars["loss"] = fit(head, self.successes, self.failures, gradient_steps, self.options, self._rng)
            self.newest.replace(head)
            for name, rows in (("success", self.successes[:, 0]), ("failure", self.failures)):
                if len(rows):
                    scalars[f"{name}_cosine"] = float(head.cosine(torch.from_numpy(rows)).mean())
        return scalars | {"head_version": float(self.newest.version)}

    def _draw(self, count: int, steps: list[NDArray[np.int64]]) -> list[tuple[int, int]]:
        """Draw from the steps of episodes, with replacement: (episode, step); empty if there are none."""
        lengths = [len(one) for one in steps]
        which = np.repeat(np.arange(len(steps)), lengths)
        if not len(which):
            return []
        rows = self._rng.integers(len(which), size=count)
        return list(zip(which[rows].tolist(), np.concatenate(steps)[rows].tolist(), strict=True))

    def _encode(self, episodes: Any, drawn: list[tuple[int, int]]) -> Features:
        states = [episodes[which].states[step : step + 1] for which, step in drawn]
        return self._scorer.features(States.concatenate(states))

    def save(self, path: str | Path) -> None:
        """Write all that the next calls of `tune` depend on to one file, atomically."""
        known = {"version": self.newest.version, "generator": self._rng.bit_generator.state}

        def write(unfinished: Path) -> None:
            with zipfile.ZipFile(unfinished, "w") as archive:
                archive.writestr("tuner.json", json.dumps(known))
                archive.writestr("head.safetensors", self.head.to_bytes())
                with archive.open("features.npz", "w", force_zip64=True) as file:
                    np.savez(file, successes=self.successes, failures=self.failures)  # pyright: ignore[reportArgumentType]
                with archive.open("log.npz", "w", force_zip64=True) as file:
                    self.log.save(file)

        atomic_write(Path(path), write)

    def load(self, path: str | Path) -> None:
        """Continue with what `save` wrote. Call this before the environments step: the head makes their rewards.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is damaged, or of another prompt or model. Nothing has changed then.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                known = json.loads(archive.read("tuner.json"))
                head = TunedHead.from_bytes(archive.read("head.safetensors"))
                with np.load(io.BytesIO(archive.read("features.npz")), allow_pickle=False) as arrays:
                    successes, failures = arrays["successes"], arrays["failures"]
                log = io.BytesIO(archive.read("log.npz"))
            for name in ("prompt", "fingerprint", "size", "hidden_size", "weight"):
                if (saved := getattr(head, name)) != (own := getattr(self.head, name)):
                    raise ValueError(f"its {name} is {saved!r}, and here it is {own!r}")
            if successes.shape[1:] != self.successes.shape[1:] or failures.shape[1:] != self.failures.shape[1:]:
                raise ValueError(f"its features are of another shape, {successes.shape[2:]}")
            generator = np.random.default_rng()
            generator.bit_generator.state = known["generator"]
            version = int(known["version"])
            self.log.load(log)
        except FileNotFoundError:
            raise
        except Exception as error:  # zipfile raises many of damaged files
            raise ValueError(f"{str(path)!r} must be what HeadTuner.save wrote here: {error}.") from error
        self.newest.head, self.newest.version = head, version
        self.successes, self.failures, self._rng = successes, failures, generator
