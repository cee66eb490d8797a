"""Read the weights of an agent as data, without executing code in the file: it may be a stranger's."""

import pickle
import warnings
from pathlib import Path

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file, recursive_getattr

from vlmrm_gym.errors import InputError
from vlmrm_gym.training.run_folder import RunError
from vlmrm_gym.untrusted import check_archive, check_file
from vlmrm_gym.validation import truncate


def load_weights(model: BaseAlgorithm, path: Path) -> None:
    """Load only networks and optimisers from a file saved by Stable-Baselines3.

    Raises:
        RunError: The file is for another algorithm or network, contains objects, or is damaged.
    """
    what = f"The policy {path} is damaged, or not a {type(model).__name__} of this run"
    try:
        with warnings.catch_warnings(action="ignore"):  # PyTorch's explain how to execute pickles anyway
            check_archive(path, check_file(path))
            _, parameters, variables = load_from_zip_file(path, load_data=False, device=model.device)
        if not all(tensor.isfinite().all() for tensor in parameters["policy"].values()):
            raise ValueError("its weights must be finite.")
        model.set_parameters(parameters)
        with torch.no_grad():
            for name in model._get_torch_save_params()[1]:
                recursive_getattr(model, name).copy_((variables or {})[name])
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise RunError(f"{what}: it contains more than numbers and texts, so it was not read.") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunError(f"{what}: {truncate(reason)}") from error
