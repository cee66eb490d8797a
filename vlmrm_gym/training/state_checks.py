"""Checks of what a checkpoint holds, before a run is resumed from it: whoever writes a file can write any value.

Each raises a ValueError in which `name` is what the value is called.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.optim import Optimizer

from vlmrm_gym.validation import is_number, short_repr

_MAX_COUNT = 10**15
"""Maximum value of a counter."""


def check_form(name: str, value: Any, like: Any) -> None:
    """Raise unless a value has the keys, types, dtypes and shapes of another; tensors must be finite.

    An integer must be at least 0. Every value of a list is compared with the first one of the other.
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
    """Raise unless a value is a finite tensor of a dtype and a shape, in which None is any length."""
    found = (value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else short_repr(value)
    fits = isinstance(value, torch.Tensor) and value.dtype == dtype and value.ndim == len(shape)
    if not fits or any(length not in (None, own) for length, own in zip(shape, value.shape, strict=True)):
        raise ValueError(f"{name} must be {dtype} {tuple(shape)}. Received {found}.")
    if value.is_meta or value.layout != torch.strided or value.nbytes > value.untyped_storage().nbytes():
        raise ValueError(f"{name} must be stored in full. Received {found}.")
    if not torch.isfinite(value).all():
        raise ValueError(f"{name} must be finite.")


def check_actions(name: str, actions: Any, space: spaces.Space[Any]) -> None:
    """Raise unless actions, (B, ...), are finite and those of a discrete space are in it."""
    values = np.asarray(actions)
    if isinstance(space, spaces.Discrete):
        fits = ((values >= space.start) & (values < space.start + space.n)).all()
    else:
        fits = np.isfinite(values).all()
    if not fits:
        raise ValueError(f"{name} must be in {space}. Received {short_repr(values.tolist())}.")


def check_optimizer(name: str, state: Any, optimizer: Optimizer) -> None:
    """Raise unless `state` is what `optimizer.state_dict()` returned after some steps or none."""
    if state["param_groups"] != optimizer.state_dict()["param_groups"]:
        raise ValueError(f"{name} must have the settings of this run. Received {short_repr(state['param_groups'])}.")
    scratch = nn.Parameter(torch.zeros(1))
    scratch.grad = torch.zeros(1)
    other: Any = type(optimizer)([scratch], **optimizer.defaults)
    other.step()
    of_one = other.state[scratch]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for i, values in state["state"].items():
        shape = parameters[i].shape
        like = {key: one.expand(shape) if torch.is_tensor(one) and one.ndim else one for key, one in of_one.items()}
        check_form(f"{name}.{i}", values, like)
