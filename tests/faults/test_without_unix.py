"""What Windows lacks is not needed: tests with it taken away. No Windows machine has run them."""

import os
import sys

import pytest
from backends import check_scored, leaving_nothing_behind, request_of, start
from reward_models import MortalReward

from vlmrm_gym._util.files import atomic_write_text, sync


@pytest.fixture
def no_unix(monkeypatch):
    """Take away what `os` has on Unix only, as far as processes that score use it."""
    for name in ("pread", "fork", "forkpty", "killpg", "setsid", "getuid", "mkfifo", "register_at_fork"):
        monkeypatch.delattr(os, name)


def test_files_are_flushed_through_descriptors_that_may_write_and_folders_are_not_opened(tmp_path, monkeypatch):
    opened = []
    plain = os.open

    def as_windows(path, flags, *more):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        opened.append(flags)
        return plain(path, flags, *more)

    monkeypatch.setattr(os, "open", as_windows)
    monkeypatch.setattr(sys, "platform", "win32")
    sync(tmp_path)
    atomic_write_text(tmp_path / "a.txt", "text")
    assert (tmp_path / "a.txt").read_text() == "text"
    assert all(flags & os.O_RDWR for flags in opened)


def test_a_worker_that_dies_is_replaced_and_its_last_words_are_said(no_unix, tmp_path):
    cure = tmp_path / "cure"
    with leaving_nothing_behind():
        queue = start(MortalReward, 1, prompt=cure)
        deadly = request_of([1, 7, 2])
        queue.submit(deadly)
        assert "seven is too much for me" in str(deadly.error())
        cure.touch()
        queue.submit(deadly)
        check_scored(deadly, [1, 7, 2])
        queue.close()
