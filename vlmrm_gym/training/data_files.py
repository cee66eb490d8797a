"""Read the files of a run as data, without executing code in them.

PyTorch's warnings and errors about pickles are left out: they explain how to execute them anyway.
"""

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file, recursive_getattr

from vlmrm_gym.training.run_folder import RunError
from vlmrm_gym.training.state_checks import check_actions, check_form, check_optimizer, check_tensor
from vlmrm_gym.untrusted import check_archive
from vlmrm_gym.validation import truncate


@contextmanager
def reading(what: str, errors: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Turn any error while reading a file into a one-line `RunError`.

    Args:
        what: The beginning of the message: the file, and what it should be.
        errors: Exceptions that a bad file can cause.

    Raises:
        RunError: Reading failed; one that reading itself raises is not changed.
    """
    try:
        yield
    except RunError:
        raise
    except pickle.UnpicklingError as error:
        raise RunError(f"{what}: it contains more than numbers and texts, so it was not read.") from error
    except errors as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunError(f"{what}: {truncate(reason)}") from error


def load_state(path: Path) -> dict[str, Any]:
    """Load the tensors, numbers and strings of a file written by `torch.save`.

    Raises:
        RunError: It contains anything else, or is damaged.
    """
    with reading(f"The state {path} cannot be read"), warnings.catch_warnings(action="ignore"):
        check_archive(path, path.stat().st_size)
        return torch.load(path, map_location="cpu", weights_only=True)


def load_replay_buffer(model: Any, path: Path) -> None:
    """Fill an algorithm's replay buffer from the arrays of a file.

    Raises:
        RunError: The file is for another buffer, contains objects, or is damaged.
    """
    with reading(f"The replay buffer {path} is not of this run, or damaged"):
        check_archive(path, path.stat().st_size)
        with np.load(path, allow_pickle=False) as state:
            model.replay_buffer.load_state_dict(state)
            stored = model.replay_buffer.size()
            check_actions("actions", model.replay_buffer.actions[:stored], model.action_space)
            check_actions("pending actions", state["pending_actions"], model.action_space)
            # Until there is a first head, all rewards are NaN, and cannot be sampled.
            if model.replay_buffer.is_settled and not np.isfinite(model.replay_buffer.rewards[:stored]).all():
                raise ValueError("its rewards must be finite.")


def load_weights(model: BaseAlgorithm, path: Path) -> None:
    """Load only networks and optimisers from a file saved by Stable-Baselines3.

    Raises:
        RunError: The file is for another algorithm or network, contains objects, or is damaged.
    """
    modules, tensors = model._get_torch_save_params()
    with (
        reading(f"The policy {path} is damaged, or not a {type(model).__name__} of this run"),
        warnings.catch_warnings(action="ignore"),
    ):
        check_archive(path, path.stat().st_size)
        _, parameters, variables = load_from_zip_file(path, load_data=False, device=model.device)
        variables = variables or {}
        if set(parameters) != set(modules) or set(variables) != set(tensors):
            raise ValueError(f"it must have {[*modules, *tensors]}. Received {[*parameters, *variables]}.")
        for name in modules:
            own = recursive_getattr(model, name)
            if isinstance(own, torch.optim.Optimizer):
                check_optimizer(name, parameters[name], own)
            else:
                check_form(name, parameters[name], own.state_dict())
        for name in tensors:
            own = recursive_getattr(model, name)
            check_tensor(name, variables[name].detach(), own.dtype, own.shape)
        model.set_parameters(parameters)
        with torch.no_grad():
            for name in tensors:
                recursive_getattr(model, name).copy_(variables[name])
