"""Read the weights of an agent as data, without executing code in the file: it may be a stranger's."""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import IO

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file, recursive_getattr

from vlmrm_gym.training.run_folder import RunError
from vlmrm_gym.validation import short_repr, truncate


def load_weights(model: BaseAlgorithm, path: Path) -> None:
    """Load only networks and optimisers from a file saved by Stable-Baselines3.

    Raises:
        RunError: The file is for another algorithm or network, contains objects, or is damaged.
    """
    what = f"The policy {path} is damaged, or not a {type(model).__name__} of this run"
    try:
        with warnings.catch_warnings(action="ignore"):  # PyTorch's explain how to execute pickles anyway
            _check_archive(path, path.stat().st_size)
            _, parameters, variables = load_from_zip_file(path, load_data=False, device=model.device)
        if not all(tensor.isfinite().all() for tensor in parameters["policy"].values()):
            raise ValueError("its weights must be finite.")
        model.set_parameters(parameters)
        with torch.no_grad():
            for name in model._get_torch_save_params()[1]:
                recursive_getattr(model, name).copy_((variables or {})[name])
    except pickle.UnpicklingError as error:
        raise RunError(f"{what}: it contains more than numbers and texts, so it was not read.") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunError(f"{what}: {truncate(reason)}") from error


def _check_archive(file: Path | IO[bytes], size: int) -> None:
    """Raise a ValueError unless a zip file of `size` bytes is as we write it: it takes no more memory than that."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its entries must not be compressed. Received {short_repr(entry.filename)}.")
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("its entries must not overlap. Received more bytes than the file has.")
        for entry in entries:
            if entry.filename.endswith(".pth"):
                with archive.open(entry) as inner:
                    _check_archive(inner, entry.file_size)
