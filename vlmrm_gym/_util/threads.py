"""Threads that do not outlive what they work for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def start(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function in a thread, which unlike an executor's ends with the process, whatever it waits for."""
    future = Future[Any]()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="vlmrm-ask", daemon=True).start()
    return future
