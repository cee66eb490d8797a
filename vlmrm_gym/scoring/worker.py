"""Runs a worker, in a process here or on a Ray node. `remote.RemoteScorer` is the other side.

It receives a function that makes the encoder, the renderer, then the keys and states of batches. It replies ("ready",
pickled `EncoderInfo`), then for each batch ("answer", features) or ("error", exception). In between, ("progress",
stage) reports progress, and ("warning", text) what the user is warned of.
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
from functools import partial
from typing import Any

import cloudpickle

from vlmrm_gym.scoring.local import Answer, LocalScorer
from vlmrm_gym.scoring.requests import StateBatch
from vlmrm_gym.scoring.state_encoder import EncoderInfo, StateEncoder

Reply = Callable[[str, Any], None]


def main(parent: int) -> None:
    """Serve the process that reads this one's standard output, until it ends or closes the standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal; the parent decides
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # library output goes to the log, not between the replies
    faulthandler.enable()
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    replying = threading.Lock()

    def reply(kind: str, payload: Any) -> None:
        message = pickle.dumps((kind, payload))
        try:
            with replying:
                replies.write(message)
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


def serve(receive: Callable[[], Any], reply: Reply) -> None:
    """Make the encoder, then answer batches until an exception. `reply` is called from any thread."""
    _send_warnings(reply)
    encoder: StateEncoder = receive()()
    reply("ready", _pickle(encoder.info))

    def answer(made: Answer) -> None:
        if isinstance(made, BaseException):
            reply("error", picklable(made))
        else:
            reply("answer", made)

    scorer = LocalScorer(encoder, receive(), answer, partial(reply, "progress"))
    while True:
        scorer.send(StateBatch(*receive()))


def _pickle(info: EncoderInfo) -> bytes:
    """Pickle what the process of the environments gets, by value: here the user's script is under another name."""
    for name, value in (("render_size", info.render_size), ("head", info.expression)):
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise ValueError(
                f"`reward.{name}` cannot be sent to the process of the environments: {error}. Make it a static method "
                "or a function of a module."
            ) from error
    return cloudpickle.dumps(info)


def _send_warnings(reply: Reply) -> None:
    """Send the texts of warnings for the user, of all threads of this process, from now on. The log has the others."""
    show = warnings.showwarning

    def send(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if category is UserWarning:
            reply("warning", str(message))
        else:
            show(message, category, *place)

    warnings.showwarning = send


def picklable(error: BaseException) -> BaseException:
    """Make a picklable form of the error, with this process's traceback as a note."""
    trace = "".join(traceback.format_exception(error))
    try:
        portable = pickle.loads(pickle.dumps(error))
    except Exception:  # some exceptions cannot be pickled, others cannot be unpickled
        portable = RuntimeError(f"{type(error).__name__}: {error}")
    portable.add_note(f"In a scoring worker:\n{trace}")
    return portable


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
