"""Programs are isolated in these tests."""

import pytest

from vlmrm_gym.programs.sandbox import is_supported


@pytest.fixture(autouse=True)
def needs_isolation():
    if not is_supported():
        pytest.skip("isolation needs Linux on x86_64 or aarch64")


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path
