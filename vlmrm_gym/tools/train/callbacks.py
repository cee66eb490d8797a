"""The callback of a run: logs metrics, keeps policies and checkpoints, records videos, handles signals."""

import io
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from vlmrm_gym._util.errors import printable
from vlmrm_gym._util.files import atomic_write, atomic_write_text
from vlmrm_gym._util.validation import is_number
from vlmrm_gym.sb3 import VLMVecEnv
from vlmrm_gym.tools.train.config import Config
from vlmrm_gym.tools.train.config_file import to_yaml
from vlmrm_gym.tools.train.evaluation import record_video
from vlmrm_gym.tools.train.preferences import RewardLearning
from vlmrm_gym.tools.train.resumable import COUNTERS, RunProgress, preserve_rng, restart
from vlmrm_gym.tools.train.run_folder import CHECKPOINTED, METRICS, RunFolder
from vlmrm_gym.tools.train.signals import Interrupted, Terminated

_MIN_EPISODES = 8
"""Minimum number of episodes over which policies are compared."""


class RunCallback(BaseCallback):
    """Writes a run's folder while an algorithm learns, between rollouts.

    Checkpoints are taken where all episodes have ended; where they do not end together, episodes are cut, at the latest
    an episode's length after a checkpoint was due.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        envs: VLMVecEnv,
        learning: RewardLearning | None,
        progress: RunProgress,
    ) -> None:
        super().__init__()
        self.config, self.folder, self.envs, self.learning, self.progress = config, folder, envs, learning, progress
        self.signal: int | None = None
        """The number of the signal, Ctrl-C or SIGTERM, that ends the training when all episodes have ended."""
        self._due_at: int | None = None
        """The step at which a checkpoint became due that is not taken yet."""
        self._bar = tqdm(total=config.rl.n_steps, initial=progress.step, unit="step", smoothing=0.05)
        if learning is not None:
            learning.progress = self._bar.set_postfix_str
        self._failing: set[str] = set()
        """What could not be written at the last attempt."""
        self._started = time.monotonic() - progress.seconds

    def receive_signal(self, number: int, frame: Any) -> None:
        """End the training with a checkpoint; at once if this is the second signal."""
        if self.signal is not None:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.signal = number
        self._warn("Interrupted: writing a checkpoint when the episodes have ended. Repeat to stop at once.")

    def _on_training_start(self) -> None:
        if self.progress.checkpoint is not None:  # the training is resumed
            for name, value in self.progress.logged.items():
                self.logger.record(name, value)
            self._restart()

    def _on_rollout_start(self) -> None:
        before, now = self.progress.step, self.model.num_timesteps
        self.progress.step = now
        logging = self.config.logging
        has_round = self._log_rounds()
        self._keep_best()
        if _due(logging.tensorboard_freq, before, now) or (has_round and logging.tensorboard_freq):
            self._log()
        if _due(logging.video_freq, before, now):
            self._record_video()
        if self._due_at is None and (_due(logging.checkpoint_freq, before, now) or self.signal is not None):
            self._due_at = now
        longest = 0 if self.envs.overlaps else (self.config.rl.episode_length or 0) * self.envs.num_envs
        is_late = self._due_at is not None and now - self._due_at >= longest
        if (self.envs.is_between_episodes and not self.envs.overlaps) or is_late:
            self._restart()
            if self._due_at is not None:
                self._due_at = None
                self.checkpoint(required=self.signal is not None)
            if self.signal is not None:
                raise Interrupted(self.signal)

    def _restart(self) -> None:
        """Begin all that is random anew, and log the episodes that were waited for."""
        self._log_infos(restart(self.model, self.envs, self.config.seed))

    def _on_step(self) -> bool:
        self._bar.update(self.model.num_timesteps - self._bar.n)
        self._log_infos(self.locals["infos"])
        return True

    def _on_training_end(self) -> None:
        self._restart()
        self.progress.step = self.model.num_timesteps
        self._keep_best()
        self._log()
        self.checkpoint(required=True)  # before the video, which needs room too
        if self.config.logging.video_freq:
            self._record_video()

    def close(self) -> None:
        """Write pending rows and close the progress bar."""
        self._log_rounds()
        self._write_rows()
        self._bar.close()

    def checkpoint(self, *, required: bool = False) -> None:
        """Write a checkpoint, unless there is one of this step; raise an OSError only if it is `required`."""
        step, model = self.model.num_timesteps, self.model
        if step == self.progress.checkpoint:
            return
        progress = {**asdict(self.progress), "step": step, "checkpoint": step}
        progress["seconds"] = time.monotonic() - self._started
        progress["logged"] = {name: float(own) for name, own in self.logger.name_to_value.items() if is_number(own)}
        counters = {name: getattr(model, name) for name in COUNTERS if hasattr(model, name)}
        state = {"counters": counters, "progress": progress, "config": to_yaml(self.config, self.folder.path)}
        writers: dict[str, Callable[[Path], object]] = {
            "model.zip": partial(_save, model.save),
            "state.json": lambda path: path.write_text(json.dumps(state)),
        }
        if (buffer := getattr(model, "replay_buffer", None)) is not None:
            writers["replay_buffer.npz"] = lambda path: np.savez(path, **buffer.state_dict())
        if self.learning is not None:
            writers["preferences.zip"] = self.learning.learner.save
        for name in CHECKPOINTED:
            if (file := self.folder.path / name).exists():
                writers[name] = lambda path, file=file: shutil.copyfile(file, path)
        with self._warn_on_error("The checkpoint", () if required else OSError):
            self.folder.save_checkpoint(step, writers)
            self.progress.checkpoint = step

    def _log_infos(self, infos: list[dict[str, Any]]) -> None:
        """Log the episodes that have been scored."""
        episodes = [info["episode"] for info in infos if "episode" in info]
        if not episodes:
            return
        progress, now, has_vlm = self.progress, self.model.num_timesteps, self.config.reward.name != "ground_truth"
        mean_return = float(np.mean([episode["r"] for episode in episodes]))
        row = {"step": now, "seconds": round(time.monotonic() - self._started, 3), "episodes": len(episodes)}
        row["vlm_return"] = mean_return if has_vlm else np.nan
        row["task_return"] = float(np.mean([episode["task_return"] for episode in episodes]))
        if self.config.has_success:
            fractions = np.array([episode["success"] for episode in episodes])
            row["success_fraction"] = float(fractions.mean())
            row["success"] = float((fractions >= self.envs.success_threshold).mean())
        if self.config.reward.score_every > 1:
            scored = [info["vlm_scored"] for info in infos if "vlm_scored" in info]
            row["scored"] = float(np.concatenate(scored).mean()) if scored else np.nan
        progress.unwritten.append(row)
        progress.unlogged.append(row)
        self._write_rows()
        for episode in episodes:
            # Of a reward that is learned, returns by different heads cannot be compared.
            if now - self.envs.num_envs * episode["l"] >= progress.head_step:
                progress.recent.append(float(episode["r"]))
        progress.has_new_returns = True
        postfix = {"VLM return" if has_vlm else "return": f"{mean_return:.2f}"}
        if self.config.has_success:
            postfix["success"] = f"{row['success']:.0%}"
        self._bar.set_postfix(postfix)

    def _log_rounds(self) -> bool:
        """Keep a new head, and report new rounds. Returns whether there were any."""
        if self.learning is not None:
            with self._warn_on_error("The head or the picture of a round"):
                self.learning.keep_head()
                return self.learning.log_rounds(self._bar.write)
        return False

    def _judge_again(self, learning: RewardLearning) -> None:
        """After a new head, forget the returns by the old one, and judge the best policy by the new one."""
        progress = self.progress
        if learning.version == progress.head_version:
            return
        progress.head_version, progress.head_step, progress.recent = learning.version, self.model.num_timesteps, []
        with self._warn_on_error("The best policy"):
            if (mean_return := learning.mean_return()) is not None:
                progress.best_return = mean_return
                best = self.folder.path / "best.json"
                summary = {**json.loads(best.read_text()), "vlm_return": mean_return}
                atomic_write_text(best, json.dumps(summary))

    def _keep_best(self) -> None:
        """Keep the policy if the mean return of the newest episodes is the best so far."""
        if self.learning is not None:
            self._judge_again(self.learning)
        progress, needed = self.progress, max(_MIN_EPISODES, self.envs.num_envs)
        progress.recent = progress.recent[-needed:]
        if not progress.has_new_returns or len(progress.recent) < needed:
            return
        mean_return = float(np.mean(progress.recent))
        summary = {"step": self.model.num_timesteps, "vlm_return": mean_return}
        with self._warn_on_error("The best policy"):
            if mean_return > progress.best_return:
                if self.learning is not None:
                    self.learning.keep_episodes(needed)
                atomic_write(self.folder.path / "best.zip", partial(_save, self.model.save))
                atomic_write_text(self.folder.path / "best.json", json.dumps(summary))
                progress.best_return = mean_return
            progress.has_new_returns = False

    def _log(self) -> None:
        """Write TensorBoard events through Stable-Baselines3's logger."""
        for name in METRICS[3:]:
            values = [row[name] for row in self.progress.unlogged if name in row]
            if values and not np.isnan(mean := np.mean(values)):
                self.logger.record(f"rollout/{name}", mean)
        self.logger.record("time/steps_per_second", self._bar.format_dict["rate"] or 0.0)
        with self._warn_on_error("TensorBoard events"):
            self.logger.dump(self.model.num_timesteps)
            self.progress.unlogged = []

    def _record_video(self) -> None:
        path, config = self.folder.path / "videos" / f"{self.model.num_timesteps:010d}.mp4", self.config
        if self.learning is not None:
            if (reward := self.learning.reward) is None:
                return
            config = replace(config, reward=reward)
        record = partial(record_video, config, self.model, seed=config.seed)
        with (
            self._warn_on_error("The video", Exception),
            preserve_rng(),
        ):  # also if there is no memory for a second model
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, record)

    def _write_rows(self) -> None:
        """Write pending rows; keep those that cannot be written for the next attempt."""
        with self._warn_on_error("Metrics"):
            self.folder.append_metrics(self.progress.unwritten)
            self.progress.unwritten = []

    @contextmanager
    def _warn_on_error(self, what: str, kind: Any = OSError) -> Iterator[None]:
        """Warn and continue if a file cannot be written; once, until it can."""
        try:
            yield
        except kind as error:
            if what not in self._failing:
                reason = str(error) if isinstance(error, OSError) else repr(error)
                self._warn(f"{what} could not be written: {reason}. Training continues; it is tried again later.")
            self._failing.add(what)
        else:
            self._failing.discard(what)

    def _warn(self, text: str) -> None:
        self._bar.write(printable(text), file=sys.stderr)


def _due(frequency: int | None, before: int, now: int) -> bool:
    return bool(frequency) and now // frequency > before // frequency


def _save(write: Callable[[Any], object], path: Path) -> None:
    """Write what a function writes to a file object, in one piece.

    On a full disk torch itself would not raise an OSError, and Stable-Baselines3 would leave the file open.
    """
    data = io.BytesIO()
    write(data)
    path.write_bytes(data.getbuffer())
