"""HDF5 files of strangers refer to nothing else, and claim no more data than they have."""

import os

import h5py
import numpy as np
import pytest

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.data.minari import check_hdf5


def external_storage(file, folder):
    (folder / "secret").write_bytes(b"a secret" * 2)
    file.create_dataset("x", shape=(2,), dtype="f8", external=[(str(folder / "secret"), 0, 16)])


def virtual(file, folder):
    with h5py.File(folder / "other", "w") as other:
        other["x"] = np.arange(3.0)
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(folder / "other", "x", (3,))
    file.create_virtual_dataset("x", layout)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (external_storage, "its data must be in it, without filters"),
        (virtual, "its data must be in it, without filters"),
        (lambda file, folder: file.__setitem__("x", h5py.ExternalLink("pipe", "/")), "must have no links"),
        (lambda file, folder: file.__setitem__("x", h5py.SoftLink("/y")), "must have no links"),
        (lambda file, folder: file.create_group("a").__setitem__("b", file["a"]), "must have no links"),
        (lambda file, folder: file.create_dataset("x", (10**9,), "f8", chunks=True), "more in 'x' than the file has"),
        (
            lambda file, folder: file.create_dataset("x", data=np.zeros(10**6), compression="gzip"),
            "its data must be in it, without filters",
        ),
        (
            lambda file, folder: file.create_dataset("x", data=[file.ref], dtype=h5py.ref_dtype),
            "must have numbers and texts",
        ),
        (None, "cannot be read"),
    ],
)
def test_an_hdf5_file_refers_to_nothing_outside_itself_and_claims_no_more_than_it_has(write, message, tmp_path):
    path = tmp_path / "file"
    os.mkfifo(path.with_name("pipe"))
    if write is None:
        path.write_bytes(b"no HDF5")
    else:
        with h5py.File(path, "w") as file:
            write(file, path.parent)
    with pytest.raises(InputError, match=message):
        check_hdf5(path)


def test_a_tree_of_arrays_and_texts_is_right(tmp_path):
    path = tmp_path / "file"
    with h5py.File(path, "w") as file:
        file["a/b/numbers"] = np.arange(1_000)
        file.create_dataset("a/texts", data=["one", "two"], dtype=h5py.string_dtype(), chunks=True, maxshape=(None,))
        file["flag"] = True
    check_hdf5(path)
