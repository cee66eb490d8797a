"""Files of strangers: what they are, how large they are, and what they refer to, before anything of them is used."""

import io
import os
import zipfile

import numpy as np
import pytest

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.untrusted import open_file, parse_json, read_arrays, read_file, read_json


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "must be a regular file. Received a pipe"),
        (lambda path: path.mkdir(), "must be a regular file. Received a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "must be a regular file. Received a device"),
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.write_bytes(bytes(101)), "must have at most 100 bytes. Received 101"),
        (lambda path: (path.touch(), os.truncate(path, 2**40)), "must have at most 100 bytes. Received 1,099,5"),
    ],
)
def test_only_a_regular_file_of_the_right_size_is_opened(make, message, path):
    make(path)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(InputError, match=f"{path} {message}"):
        read_file(path, 100)
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    with pytest.raises(InputError, match="null byte"):
        open_file("a\0b")


def test_json_is_bounded_in_depth_and_size(path):
    for text, message in (
        ("[" * 100_000, "at most 32 levels"),
        ('{"a":' * 34 + "1" + "}" * 34, "at most 32 levels"),
        ("1" * 5_000, "cannot be read"),
        ("{", "cannot be read"),
        ("\ud800", "cannot be read"),
    ):
        path.write_text(text, errors="surrogatepass")
        with pytest.raises(InputError, match=message):
            read_json(path)
    assert parse_json("[" * 33 + "]" * 33) is not None
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2**22 + 1)
    with pytest.raises(InputError, match="at most 4,194,304 bytes"):
        read_json(path)


def npz(header: bytes | None = None, data: bytes = b"", compression=zipfile.ZIP_STORED) -> bytes:
    """An archive of one array of two numbers, or with another header and other data."""
    content = io.BytesIO()
    np.save(content, np.arange(2.0))
    array = content.getvalue()
    if header is not None:
        length = len(header).to_bytes(2, "little")
        array = b"\x93NUMPY\x01\x00" + length + header + data
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", compression) as file:
        file.writestr("x.npy", array)
    return archive.getvalue()


HEADER = "{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


def test_arrays_take_no_more_memory_than_their_file(path):
    """And are read as they were written."""
    path.write_bytes(npz())
    np.testing.assert_array_equal(read_arrays(path)["x"], [0, 1])
    pickled = HEADER.format(descr="'|O'", shape="(2,)").encode()
    for content, message in (
        (npz(HEADER.format(descr="'<f8'", shape="(1000000000,)").encode(), bytes(16)), "which is not what follows"),
        (npz(HEADER.format(descr="'<f8'", shape="(-2,)").encode(), bytes(16)), "which is not what follows"),
        (npz(pickled, b"cos\nsystem\n(S'id'\ntR."), "not what follows|pickle"),
        (npz(HEADER.format(descr="'<V0'", shape="(10**9,)").encode()), "cannot be read"),
        (npz(b"__import__('os')"), "cannot be read"),
        (npz(compression=zipfile.ZIP_DEFLATED), "must not be compressed"),
        (npz()[:-30], "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_arrays(path)
