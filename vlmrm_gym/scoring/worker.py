"""The worker process: reads states from its standard input and writes what it makes of them to its standard output.

`process.ProcessWorker` is the other side. Input pickles: a function that makes the reward model, the renderer, then
the fields of batches. Output pickles: ("ready", `WorkerInfo`), then for each batch ("drawn", None), and ("answer",
`Answer`) or ("error", exception). In between, ("progress", "draw" or "encode") reports progress.
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
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import cloudpickle

from vlmrm_gym.rewards.state_reward import StateReward
from vlmrm_gym.scoring.local import LocalScorer
from vlmrm_gym.scoring.scorer import Batch, Values


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker reports once its model is loaded."""

    render_size: bytes
    """Pickled by value: a worker knows the user's script under another module name than the process that started it."""
    batch_size: int
    warnings: list[str]
    info: bytes
    """The pickled `StateReward.info`."""


@dataclass(frozen=True)
class Answer:
    """What a worker returns for a batch."""

    values: Values
    """What it made of the states."""
    warnings: Sequence[str]
    """What it has warned of since the answer before."""


def main(parent: int) -> None:
    """Serve requests until the input or the parent ends.

    Args:
        parent: Process ID of the parent, which reads the replies.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal; the parent decides
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # library output goes to the log, not between the replies
    faulthandler.enable()
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    replying = threading.Lock()

    def reply(kind: str, payload: Any) -> None:
        try:
            with replying:
                pickle.dump((kind, payload), replies)
                replies.flush()
        except BrokenPipeError:  # the parent is gone
            os._exit(0)

    try:
        _answer(requests, reply)
    except EOFError:
        pass
    except BaseException as error:
        reply("error", picklable(error))
    os._exit(0)  # a normal exit would wait for the batch in progress


def _answer(requests: BinaryIO, reply: Callable[[str, Any], None]) -> None:
    reward, info = load_reward(pickle.load(requests))
    reply("ready", info)
    warned = collect_warnings()

    def answer(future: Future[Values]) -> None:
        error = future.exception()
        if error is None:
            reply("answer", make_answer(future.result(), warned))
        else:
            reply("error", picklable(error))

    scorer = LocalScorer(reward, pickle.load(requests), partial(reply, "progress"))
    while True:
        future = scorer.submit(Batch(*pickle.load(requests)))
        reply("drawn", None)
        future.add_done_callback(answer)


def load_reward(make_reward: Callable[[], StateReward]) -> tuple[StateReward, WorkerInfo]:
    """Make the reward and record its warnings. Raise a ValueError if its `render_size` or `head` cannot be pickled."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        reward = make_reward()
    messages = [str(warning.message) for warning in caught if warning.category is UserWarning]
    render_size = _pickle_part("render_size", reward.render_size)
    return reward, WorkerInfo(render_size, reward.batch_size, messages, _pickle_part("head", reward.info))


def _pickle_part(name: str, part: Any) -> bytes:
    """Pickle a part of the reward for the process of the environments."""
    try:
        return cloudpickle.dumps(part)
    except Exception as error:
        raise ValueError(
            f"`reward.{name}` cannot be sent to the process of the environments: {error}. Make it a static method "
            "or a function of a module."
        ) from error


def collect_warnings() -> deque[str]:
    """Collect the texts of warnings for the user, of all threads of this process, from now on: see `make_answer`."""
    collected: deque[str] = deque()
    show = warnings.showwarning

    def collect(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if category is UserWarning:
            collected.append(str(message))
        else:
            show(message, category, *place)

    warnings.showwarning = collect
    return collected


def make_answer(values: Values, warned: deque[str]) -> Answer:
    """The answer with these values and all warnings so far, which are removed."""
    return Answer(values, [warned.popleft() for _ in range(len(warned))])


def picklable(error: BaseException) -> BaseException:
    """A picklable form of the error, with this process's traceback as a note."""
    trace = "".join(traceback.format_exception(error))
    try:
        portable = pickle.loads(pickle.dumps(error))
    except Exception:  # some exceptions cannot be pickled, others cannot be unpickled
        portable = RuntimeError(f"{type(error).__name__}: {error}")
    portable.add_note(f"In a scoring worker:\n{trace}")
    return portable


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent ends for any reason, even in the middle of a batch."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
