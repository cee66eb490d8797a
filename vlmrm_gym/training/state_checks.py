"""Checks of what a checkpoint holds, before a run is resumed from it: whoever writes a file can write any value."""

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.optim import Optimizer

from vlmrm_gym.validation import is_number, short_repr

_MAX_COUNT = 10**15
"""Maximum value of a counter."""


def check_archive(file: Path | IO[bytes], size: int) -> None:
    """Raise a ValueError unless a zip file is as we write it: nothing in it takes more memory than the file itself.

    Args:
        file: The file.
        size: Its size in bytes.

    Raises:
        zipfile.BadZipFile: It is no zip file.
    """
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
                    check_archive(inner, entry.file_size)


def check_form(name: str, value: Any, like: Any) -> None:
    """Raise a ValueError unless a value has the keys, types, dtypes and shapes of another; tensors must be finite.

    An integer must be at least 0. Every value of a list is compared with the first one of the other.

    Args:
        name: What the value is called, for the message.
        value: The value.
        like: A value of the right form.
    """
    if isinstance(like, torch.Tensor):
        check_tensor(name, value, like.dtype, like.shape)
    elif isinstance(like, Mapping):
        if not isinstance(value, Mapping) or value.keys() != like.keys():
            raise ValueError(f"{name} must have {sorted(like)}. Received {short_repr(value)}.")
        for key, own in like.items():
            check_form(f"{name}.{key}", value[key], own)
    elif isinstance(like, list):
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list. Received {short_repr(value)}.")
        for i, own in enumerate(value):
            check_form(f"{name}.{i}", own, like[0])
    elif type(like) is int:
        if type(value) is not int or not 0 <= value <= _MAX_COUNT:
            raise ValueError(f"{name} must be an integer from 0 to {_MAX_COUNT:,}. Received {short_repr(value)}.")
    elif isinstance(like, float):
        if not is_number(value):
            raise ValueError(f"{name} must be a number. Received {short_repr(value)}.")
    elif type(value) is not type(like):
        raise ValueError(f"{name} must be of {type(like).__name__}. Received {short_repr(value)}.")


def check_tensor(name: str, value: Any, dtype: torch.dtype, shape: Sequence[int | None]) -> None:
    """Raise a ValueError unless a value is a finite tensor of a dtype and a shape.

    Args:
        name: What the value is called, for the message.
        value: The value.
        dtype: The dtype.
        shape: The shape; None: any length.
    """
    found = (value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else short_repr(value)
    fits = isinstance(value, torch.Tensor) and value.dtype == dtype and value.ndim == len(shape)
    if not fits or any(length not in (None, own) for length, own in zip(shape, value.shape, strict=True)):
        raise ValueError(f"{name} must be {dtype} {tuple(shape)}. Received {found}.")
    if value.is_meta or value.layout != torch.strided or value.nbytes > value.untyped_storage().nbytes():
        raise ValueError(f"{name} must be stored in full. Received {found}.")
    if not torch.isfinite(value).all():
        raise ValueError(f"{name} must be finite.")


def check_actions(name: str, actions: Any, space: spaces.Space[Any]) -> None:
    """Raise a ValueError unless actions, (B, ...), are finite and those of a discrete space are in it."""
    values = np.asarray(actions)
    if isinstance(space, spaces.Discrete):
        fits = ((values >= space.start) & (values < space.start + space.n)).all()
    else:
        fits = np.isfinite(values).all()
    if not fits:
        raise ValueError(f"{name} must be in {space}. Received {short_repr(values.tolist())}.")


def check_optimizer(name: str, state: Any, optimizer: Optimizer) -> None:
    """Raise a ValueError unless a state is one of an optimiser with these parameters and settings.

    Args:
        name: What the state is called, for the message.
        state: What `optimizer.state_dict()` returned.
        optimizer: The optimiser. Only its learning rate may differ.
    """
    saved, own = ([{**group, "lr": None} for group in one["param_groups"]] for one in (state, optimizer.state_dict()))
    if saved != own:
        raise ValueError(f"{name} must have the settings of this run. Received {short_repr(saved)}.")
    for group in state["param_groups"]:
        if not is_number(group["lr"]) or not 0 <= group["lr"] < math.inf:
            raise ValueError(f"{name} must have a learning rate. Received {short_repr(group['lr'])}.")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_one = _state_of_one(optimizer)
    for i, values in state["state"].items():
        shape = parameters[i].shape
        like = {key: one.expand(shape) if torch.is_tensor(one) and one.ndim else one for key, one in of_one.items()}
        check_form(f"{name}.{i}", values, like)


def _state_of_one(optimizer: Optimizer) -> Mapping[str, Any]:
    """What the optimiser keeps for a parameter of shape (1,)."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    scratch: Any = type(optimizer)([parameter], **optimizer.defaults)
    scratch.step()
    return scratch.state[parameter]
