"""What turns states into rewards, and the kind that works in this process."""

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering import Renderer

Rewards = NDArray[np.float32]

IN_FLIGHT = 2
"""Batches that a scorer is given at once: one is drawn while the one before it is encoded."""


class RewardModel(Protocol):
    """Scores frames; `CLIPReward` is one."""

    batch_size: int
    """How many frames it takes at once, at the most."""

    @property
    def slice_size(self) -> int:
        """How many frames it scores within a second or so: work can be stopped after each slice.

        It must not be measured, and never change: a reward's last digits depend on it.
        """
        ...

    @property
    def size_to_draw(self) -> Callable[[int, int], tuple[int, int]]:
        """From (height, width) of what an environment shows to how large to draw it. Can be pickled."""
        ...

    def __call__(self, frames: NDArray[np.uint8]) -> Rewards:
        """Frames, uint8 (B, H, W, 3), to rewards, float32 (B,)."""
        ...


class Scorer(Protocol):
    """Scores batches of states, in the order in which they are sent. All but `abort` are called by one thread."""

    def send(self, states: NDArray[Any]) -> None:
        """Hand over a batch, (B, ...). Never raises: what goes wrong is told by `receive`."""
        ...

    def receive(self) -> Rewards:
        """Wait for the rewards, float32 (B,), of the first batch that is not answered yet; or raise what went wrong."""
        ...

    def abort(self) -> None:
        """End a `receive` that is waiting, if that can be done. Called by another thread, before `close`."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class LocalScorer:
    """Draws states on the thread that sends them, and encodes the frames on a thread of its own.

    The two overlap: on a GPU, and on a CPU with more than one core.
    """

    def __init__(self, reward: RewardModel, renderer: Renderer) -> None:
        self._reward, self._renderer = reward, renderer
        self._unanswered: deque[Future[Rewards]] = deque()
        self._aborted = False
        self._drawn: queue.SimpleQueue[tuple[NDArray[np.uint8] | BaseException, Future[Rewards]] | None]
        self._drawn = queue.SimpleQueue()
        # A daemon, unlike an executor's thread: the end of the program does not wait for a batch that nobody wants.
        self._encoder = threading.Thread(target=self._encode, name="vlmrm-encode", daemon=True)
        self._encoder.start()

    def submit(self, states: NDArray[Any]) -> Future[Rewards]:
        """Draw a batch; when this returns, it waits to be encoded. The futures are done in the order of the batches."""
        future: Future[Rewards] = Future()
        try:
            frames = self._renderer.render(states)
        except BaseException as error:  # sys.exit() too: somebody waits for an answer
            frames = error
        self._drawn.put((frames, future))
        return future

    def send(self, states: NDArray[Any]) -> None:
        """Draw a batch, for `receive`."""
        self._unanswered.append(self.submit(states))

    def receive(self) -> Rewards:
        """Wait for the rewards of the first batch that is not answered yet."""
        return self._unanswered.popleft().result()

    def abort(self) -> None:
        """End the encoding soon, within a batch too."""
        self._aborted = True

    def close(self) -> None:
        """End the encoding, and free what draws."""
        self._drawn.put(None)
        self._encoder.join()
        self._renderer.close()

    def _encode(self) -> None:
        while (drawn := self._drawn.get()) is not None:
            frames, future = drawn
            try:
                if isinstance(frames, BaseException):
                    raise frames
                future.set_result(self._rewards(frames))
            except BaseException as error:
                future.set_exception(error)
            del drawn, frames, future  # or they would stay until the next batch

    def _rewards(self, frames: NDArray[np.uint8]) -> Rewards:
        """Encode in slices that do not take long, so that a large model on a CPU can be stopped.

        A daemon thread that is inside torch when the interpreter ends would take the program down with it.
        """
        rewards, size = np.empty(len(frames), dtype=np.float32), self._reward.slice_size
        for start in range(0, len(frames), size):
            if self._aborted:
                raise RuntimeError("Scoring was stopped.")
            rewards[start : start + size] = self._reward(frames[start : start + size])
        return rewards
