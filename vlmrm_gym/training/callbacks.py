"""What a training does beside training: it counts, logs, keeps policies, films, and can be interrupted."""

import json
import pickle
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from vlmrm_gym.training.config import Config
from vlmrm_gym.training.config_file import flat
from vlmrm_gym.training.evaluation import film
from vlmrm_gym.training.resumable import ResumableVecEnv, restore_random_states, training_state, undisturbed
from vlmrm_gym.training.run_folder import COPIED, METRICS, RunFolder, write_whole

_BEST_OF = 8
"""The least number of episodes whose mean scored return makes a policy the best."""


class Interrupted(Exception):
    """Somebody has asked for the end of the training, and a checkpoint has been written.

    Args:
        signal: The number of the signal that said so.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass
class Progress:
    """How far a training is; part of a checkpoint."""

    step: int = 0
    """At the beginning of the last rollout."""
    seconds: float = 0.0
    best_return: float = -np.inf
    checkpoint: int | None = None
    """The step of the last checkpoint."""
    recent: list[float] = field(default_factory=list)
    """The newest scored returns."""
    news: bool = False
    """Whether they have changed since a policy was last compared."""
    unwritten: list[dict[str, float]] = field(default_factory=list)
    """Lines of metrics.csv that a full disk has refused."""
    unlogged: list[dict[str, float]] = field(default_factory=list)
    """Lines that TensorBoard has not been told."""


class RunCallback(BaseCallback):
    """Writes a run's folder while an algorithm learns.

    Checkpoints, the best policy and videos are made between rollouts, where a training can be resumed exactly.

    Args:
        config: `suited`.
        folder: Of the run.
        envs: That the algorithm learns in.
        interrupts: Tells when to stop.
        resumed: The state of a checkpoint to go on from.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        envs: ResumableVecEnv,
        interrupts: "Interrupts",
        resumed: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.folder, self.envs, self.interrupts = config, folder, envs, interrupts
        self.progress = Progress(**resumed["progress"]) if resumed else Progress()
        self._resumed = resumed
        assert config.rl.n_steps is not None
        self._bar = tqdm(total=config.rl.n_steps, initial=self.progress.step, unit="step", smoothing=0.05)
        self._recent_success: deque[float] = deque(maxlen=32)
        self._began = time.monotonic() - self.progress.seconds

    def _on_rollout_start(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed:
            restore_random_states(self.model, resumed["training"])
        before, now = self.progress.step, self.model.num_timesteps
        self.progress.step = now
        logging = self.config.logging
        self._keep_best()
        if _due(logging.tensorboard_freq, before, now):
            self._log()
        if _due(logging.video_freq, before, now):
            self._film()
        if _due(logging.checkpoint_freq, before, now):
            self.checkpoint()
        if self.interrupts.came is not None:
            self.checkpoint(must=True)
            raise Interrupted(self.interrupts.came)

    def _on_step(self) -> bool:
        self._bar.update(self.training_env.num_envs)
        infos = self.locals["infos"]
        if episodes := [info["episode"] for info in infos if "episode" in info]:
            self._note(episodes)
        return True

    def _on_training_end(self) -> None:
        self.progress.step = self.model.num_timesteps
        self._keep_best()
        self._log()
        if self.config.logging.video_freq:
            self._film()
        self.checkpoint(must=True)

    def close(self) -> None:
        """Write what has not been written, and let go of the progress bar."""
        self._write_rows()
        self._bar.close()

    def checkpoint(self, *, must: bool = False) -> None:
        """Write one, unless there is one of this step. A full disk ends the training only where it ends anyway.

        Args:
            must: There is no later one.

        Raises:
            OSError: The last one could not be written.
        """
        step, model = self.model.num_timesteps, self.model
        if step == self.progress.checkpoint:
            return
        progress = {**asdict(self.progress), "step": step, "checkpoint": step}
        progress["seconds"] = time.monotonic() - self._began
        state = {"training": training_state(model, self.envs), "progress": progress, "config": flat(self.config)}
        writers: dict[str, Callable[[Path], object]] = {
            "model.zip": model.save,
            "state.pkl": lambda p: _pickle(state, p),
        }
        if (buffer := getattr(model, "replay_buffer", None)) is not None:
            writers["replay_buffer.pkl"] = lambda path: _pickle(buffer, path)
        for name in COPIED:
            if (file := self.folder.path / name).exists():
                writers[name] = lambda path, file=file: shutil.copyfile(file, path)
        try:
            self.folder.save_checkpoint(step, writers)
        except OSError as error:
            if must:
                raise
            kept = self.progress.checkpoint
            kept = "There is none before it." if kept is None else f"That of step {kept:,} is kept."
            self._tell(f"The checkpoint of step {step:,} could not be written: {error}. {kept} The training goes on.")
        else:
            self.progress.checkpoint = step

    def _note(self, episodes: list[dict[str, float]]) -> None:
        """Episodes have been scored."""
        clip, judged = self.config.reward.name == "clip", self.config.judged
        scored_return = np.mean([episode["r"] for episode in episodes])
        means = {
            "vlm_return": scored_return if clip else np.nan,
            "task_return": np.mean([episode["task_return"] for episode in episodes]),
            "success_share": np.mean([episode["success"] for episode in episodes]) if judged else np.nan,
            "success": np.mean([episode["success"] >= self.envs.success_share for episode in episodes])
            if judged
            else np.nan,
        }
        seconds = time.monotonic() - self._began
        counts = {"step": self.model.num_timesteps, "seconds": round(seconds, 3), "episodes": len(episodes)}
        row = {**counts, **{name: float(value) for name, value in means.items()}}
        self.progress.unwritten.append(row)
        self.progress.unlogged.append(row)
        self._write_rows()
        self.progress.recent += [float(episode["r"]) for episode in episodes]
        self.progress.news = True
        self._recent_success.append(row["success"])
        shown = {"scored return" if clip else "return": f"{scored_return:.2f}"}
        if judged:
            shown["success"] = f"{np.mean(self._recent_success):.0%}"
        self._bar.set_postfix(shown)

    def _keep_best(self) -> None:
        """Keep the policy, if the newest episodes are the best so far by what the agent is told to maximise."""
        progress, needed = self.progress, max(_BEST_OF, self.envs.num_envs)
        progress.recent = progress.recent[-needed:]
        if not progress.news or len(progress.recent) < needed:
            return
        scored_return = float(np.mean(progress.recent))
        told = {"step": self.model.num_timesteps, "scored_return": scored_return}
        with self._surviving("The best policy"):
            if scored_return > progress.best_return:
                write_whole(self.folder.path / "best.zip", self.model.save)
                write_whole(self.folder.path / "best.json", lambda path: path.write_text(json.dumps(told)))
                progress.best_return = scored_return
            progress.news = False

    def _log(self) -> None:
        """Have Stable-Baselines3's logger write."""
        rows = self.progress.unlogged
        for name in METRICS[3:] if rows else ():
            if not np.isnan(value := np.mean([row[name] for row in rows])):
                self.logger.record(f"rollout/{name}", value)
        self.logger.record("time/steps_per_second", self._bar.format_dict["rate"] or 0.0)
        with self._surviving("TensorBoard events"):
            self.logger.dump(self.model.num_timesteps)
            self.progress.unlogged = []

    def _film(self) -> None:
        path = self.folder.path / "videos" / f"{self.model.num_timesteps:010d}.mp4"
        try:
            with undisturbed():
                path.parent.mkdir(exist_ok=True)
                write_whole(path, lambda partial: film(self.config, self.model, partial, seed=self.config.seed))
        except Exception as error:  # such as a GPU without room for another model: no reason to end a training
            self._tell(f"The video could not be made: {error!r}. The training goes on.")

    def _write_rows(self) -> None:
        """What a full disk refuses is written with the next."""
        with self._surviving("Metrics"):
            self.folder.append_metrics(self.progress.unwritten)
            self.progress.unwritten = []

    @contextmanager
    def _surviving(self, what: str) -> Iterator[None]:
        """Go on if a file cannot be written."""
        try:
            yield
        except OSError as error:
            self._tell(f"{what} could not be written: {error}. It is tried again while the training goes on.")

    def _tell(self, text: str) -> None:
        self._bar.write(text, file=sys.stderr)


class Interrupts:
    """Ctrl-C and SIGTERM ask for an end between rollouts; a second one ends at once."""

    def __init__(self) -> None:
        self.came: int | None = None
        """The signal that has come."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """While this lasts; in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def note(number: int, frame: Any) -> None:
            self.came = number
            told = "Interrupted: a checkpoint is written after this rollout. Once more: stop at once."
            tqdm.write(told, file=sys.stderr)
            restore()

        def restore() -> None:
            for number, handler in usual.items():
                signal.signal(number, handler)

        for number in usual:
            signal.signal(number, note)
        try:
            yield
        finally:
            restore()


def _due(frequency: int | None, before: int, now: int) -> bool:
    return bool(frequency) and now // frequency > before // frequency


def _pickle(value: object, path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
