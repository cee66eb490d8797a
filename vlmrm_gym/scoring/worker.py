"""The scoring worker: a process that reads states from its standard input and writes rewards to its standard output.

`process.WorkerProcess` is the other side. Pickles come in: a function that makes the reward model, then the renderer,
then states. Pickles go out: ("ready", `Ready`), then for each batch ("rewards", array) or ("error", exception).
"""

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, BinaryIO

from vlmrm_gym.scoring.scorer import LocalScorer, Rewards


@dataclass(frozen=True)
class Ready:
    """What a worker tells when it has loaded its model."""

    size_to_draw: Callable[[int, int], tuple[int, int]]
    batch_size: int
    warnings: list[str]


def main() -> None:
    """Answer until the input, or the parent, ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal; the parent decides
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print belongs into the log, not between the replies
    faulthandler.enable()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        _answer(requests, replies)
    except EOFError:
        pass
    except BaseException as error:
        _reply(replies, "error", _portable(error))
    os._exit(0)  # the interpreter's own end would wait for the batch that is being encoded


def _answer(requests: BinaryIO, replies: BinaryIO) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        reward = pickle.load(requests)()
    said = [str(warning.message) for warning in caught if warning.category is UserWarning]
    _reply(replies, "ready", Ready(reward.size_to_draw, reward.batch_size, said))

    def answer(future: Future[Rewards]) -> None:
        error = future.exception()
        if error is None:
            _reply(replies, "rewards", future.result())
        else:
            _reply(replies, "error", _portable(error))

    scorer = LocalScorer(reward, pickle.load(requests))
    while True:
        scorer.submit(pickle.load(requests)).add_done_callback(answer)


def _reply(replies: BinaryIO, kind: str, payload: Any) -> None:
    try:
        pickle.dump((kind, payload), replies)
        replies.flush()
    except BrokenPipeError:  # the parent has gone
        os._exit(0)


def _portable(error: BaseException) -> BaseException:
    """The error as it can be raised in the parent, with the traceback that it had here."""
    trace = "".join(traceback.format_exception(error))
    try:
        portable = pickle.loads(pickle.dumps(error))
    except Exception:  # some exceptions cannot be pickled, some only cannot be made again
        portable = RuntimeError(f"{type(error).__name__}: {error}")
    portable.add_note(f"In a scoring worker:\n{trace}")
    return portable


def _end_with(parent: int) -> None:
    """End when the parent does, however it ends, in the middle of a batch too."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
