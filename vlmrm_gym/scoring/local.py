"""Scoring in this process: the "local" backend, also used inside every worker."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.errors import InputError
from vlmrm_gym.rewards.program_error import ProgramError
from vlmrm_gym.rewards.state_reward import RewardInfo, StateReward
from vlmrm_gym.scoring.backends import choose_devices
from vlmrm_gym.scoring.scorer import MAX_STEPS, ORDERED, Batch, Drawing, Keys, ScorerOptions, StartedScorers, Values
from vlmrm_gym.states import Renderer, States
from vlmrm_gym.states.drawing import Drawings

FRAMES_PER_DRAW = 64
"""Frames drawn between two progress reports."""

Stage = Literal["draw", "encode"]


def start(options: ScorerOptions) -> StartedScorers:
    """One scorer on threads of this process."""
    (device,) = choose_devices(0, options.devices, options.device)
    reward = options.make_reward(device=device)
    scorer = LocalScorer(reward, options.make_renderer(reward.render_size))
    return StartedScorers([scorer], reward.batch_size, reward.info)


class LocalScorer:
    """Renders states on the calling thread and encodes the frames on another.

    The two overlap on a GPU, and on a CPU with more than one core. `progress` is called with "draw" after every
    `FRAMES_PER_DRAW` frames, and with "encode" after every microbatch.
    """

    max_in_flight = 2
    """One batch is drawn while the one before it is encoded."""

    def __init__(
        self, reward: StateReward, renderer: Renderer, progress: Callable[[Stage], object] = lambda stage: None
    ) -> None:
        self._reward, self._renderer, self._progress = reward, renderer, progress
        self._drawings = Drawings(renderer)
        self._unanswered: deque[Future[Values]] = deque()
        self._aborted = False
        self._drawn: queue.SimpleQueue[tuple[NDArray[np.uint8] | BaseException, Batch, Future[Values]] | None]
        self._drawn = queue.SimpleQueue()
        # A daemon thread, unlike an executor's: the interpreter exits without waiting for the current batch.
        self._encoder = threading.Thread(target=self._encode, name="vlmrm-encode", daemon=True)
        self._encoder.start()

    def wait_until_available(self) -> bool:
        """Return at once."""
        return not self._aborted

    def submit(self, batch: Batch) -> Future[Values]:
        """Draw a batch and queue its frames for encoding. The futures complete in the order of the batches."""
        future: Future[Values] = Future()
        try:
            frames = self._draw(batch)
        except BaseException as error:  # including SystemExit, because the caller is waiting
            frames = error
        self._drawn.put((frames, batch, future))
        return future

    def send(self, batch: Batch) -> None:
        """Draw a batch; `receive` returns what was made of it."""
        self._unanswered.append(self.submit(batch))

    def receive(self) -> Values:
        """Wait for what was made of the oldest unanswered batch."""
        return self._unanswered.popleft().result()

    def abort(self) -> None:
        """Stop encoding after the current microbatch, and programs at once."""
        self._aborted = True
        self._reward.close()

    def close(self) -> None:
        """Stop encoding, and free the renderers."""
        self._drawn.put(None)
        self._encoder.join()
        self._drawings.close()
        self._renderer.close()
        self._reward.close()

    def _draw(self, batch: Batch) -> NDArray[np.uint8]:
        drawn, output = [], batch.output
        every = batch.states.newest if isinstance(output, Drawing) else replace(batch.states, clips=None)
        if self._reward.info.sees_states and not isinstance(output, Drawing):
            return see(every, self._renderer, self._reward.info)
        for start in range(0, len(every), FRAMES_PER_DRAW):
            states = every[start : start + FRAMES_PER_DRAW]
            if isinstance(output, Drawing):
                drawn.append(self._drawings.draw(states, output.size, output.camera))
            else:
                drawn.append(states.draw(self._renderer))
            self._progress("draw")
        return drawn[0] if len(drawn) == 1 else np.concatenate(drawn)

    def _encode(self) -> None:
        while (drawn := self._drawn.get()) is not None:
            frames, batch, future = drawn
            try:
                if isinstance(frames, BaseException):
                    raise frames
                future.set_result(frames if isinstance(batch.output, Drawing) else self._score(frames, batch))
            except BaseException as error:
                future.set_exception(error)
            del drawn, frames, batch, future  # free them before waiting for the next batch

    def _score(self, frames: NDArray[np.uint8], batch: Batch) -> Values:
        """Encode in microbatches, so that a large model on a CPU can be stopped.

        A daemon thread that is inside torch at interpreter exit crashes the program.
        """
        if batch.output == "ordered":
            return self._score_runs(frames, batch)
        if (held := batch.states.clips) is not None and held.ndim == 1:
            return self._score(frames, replace(batch, states=replace(batch.states, clips=None)))[held]
        parts, size = [], self._reward.microbatch_size
        score = self._reward.features if batch.output == "features" else self._reward
        for start in range(0, len(batch), size):
            if self._aborted:
                raise RuntimeError("Scoring was stopped.")
            with _naming_states(batch.keys[start : start + size]):
                parts.append(score(batch.states.gather(frames, slice(start, start + size))))
            self._progress("encode")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _score_runs(self, frames: NDArray[Any], batch: Batch) -> Values:
        """Ordered rewards of the runs of a batch, `ORDERED` (B,)."""
        values, start = np.full(len(batch), None, dtype=ORDERED), 0
        for count, memory in batch.runs:
            for first in range(start, start + count, self._reward.microbatch_size):
                if self._aborted:
                    raise RuntimeError("Scoring was stopped.")
                stop = min(first + self._reward.microbatch_size, start + count)
                with _naming_states(batch.keys[first:stop]):
                    values["reward"][first:stop], memory = self._reward.continue_episode(frames[first:stop], memory)
                self._progress("encode")
            start += count
            values["memory"][start - 1] = memory
        return values


@contextmanager
def _naming_states(keys: Keys) -> Iterator[None]:
    """Add to the error of a program of which state the frame is."""
    try:
        yield
    except ProgramError as error:
        if error.frame is not None:
            views = max(1, error.count // len(keys))
            environment, step = divmod(int(keys[error.frame // views]), MAX_STEPS)
            error.args = (f"{error} The frame is of environment {environment}, step {step}.",)
        raise


def see(states: States, renderer: Renderer, info: RewardInfo) -> NDArray[Any]:
    """What a reward sees of states: their frames, see `States.draw`, or their numbers, float64 (B, S)."""
    if not info.sees_states:
        return states.draw(renderer)
    if states.rows.ndim != 2 or states.rows.dtype != np.float64:
        raise InputError(
            '`inputs="states"` needs states from which frames can be drawn. Received frames, of shape '
            f'{states.rows.shape[1:]}. Pass inputs="frames".'
        )
    return states.rows
