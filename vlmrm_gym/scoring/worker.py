"""What a worker does, in a process here or on a Ray node. `remote.RemoteScorer` is the other side.

It receives a function that makes the reward, the renderer, then the fields of batches. It replies ("ready",
`WorkerInfo`), then for each batch ("drawn", None), and ("answer", `Answer`) or ("error", exception). In between,
("progress", "draw" or "encode") reports progress.
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
from typing import Any

import cloudpickle

from vlmrm_gym.rewards.state_reward import StateReward
from vlmrm_gym.scoring.local import LocalScorer
from vlmrm_gym.scoring.scorer import Batch, Values

Reply = Callable[[str, Any], None]


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
    """Serve the process that reads this one's standard output, until it ends or closes the standard input.

    Args:
        parent: Its process ID.
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
        serve(partial(pickle.load, requests), reply)
    except EOFError:
        pass
    except BaseException as error:
        reply("error", picklable(error))
    os._exit(0)  # a normal exit would wait for the batch in progress


def serve(receive: Callable[[], Any], reply: Reply, warned: Sequence[str] = ()) -> None:
    """Make the reward, then answer batches until an exception.

    Args:
        receive: Waits for a message, and returns it.
        reply: Sends a kind and a payload. Called from two threads.
        warned: What to warn of besides what loading the model warns of.
    """
    reward, info = load_reward(receive(), warned)
    reply("ready", info)
    collected = _collect_warnings()

    def answer(future: Future[Values]) -> None:
        if error := future.exception():
            reply("error", picklable(error))
        else:
            reply("answer", Answer(future.result(), [collected.popleft() for _ in range(len(collected))]))

    scorer = LocalScorer(reward, receive(), partial(reply, "progress"))
    while True:
        future = scorer.submit(Batch(*receive()))
        reply("drawn", None)
        future.add_done_callback(answer)


def load_reward(make_reward: Callable[[], StateReward], warned: Sequence[str]) -> tuple[StateReward, WorkerInfo]:
    """Make the reward and record its warnings. Raise a ValueError if its `render_size` or `head` cannot be pickled."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        reward = make_reward()
    messages = [*warned, *(str(warning.message) for warning in caught if warning.category is UserWarning)]
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


def _collect_warnings() -> deque[str]:
    """Collect the texts of warnings for the user, of all threads of this process, from now on."""
    collected: deque[str] = deque()
    show = warnings.showwarning

    def collect(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if category is UserWarning:
            collected.append(str(message))
        else:
            show(message, category, *place)

    warnings.showwarning = collect
    return collected


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
