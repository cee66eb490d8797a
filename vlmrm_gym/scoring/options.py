"""Scoring options: every keyword of the environments with its type, default, help and check, declared once.

The constructors of `VLMReward` and `VLMRewardVectorEnv` take them as keywords (and so do `gym.make`, `gym.make_vec` and
`sb3.make_vec_env`), configuration files as keys of `reward`, and commands as flags: all are derived from these fields,
and from those of `CLIP`. Imports no torch.
"""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from inspect import Parameter
from itertools import pairwise
from typing import Any, Literal, TypeVar, cast, get_type_hints

from vlmrm_gym._util.validation import check_finite, check_flag, is_number, short_repr
from vlmrm_gym.data.episode_log import EpisodeLog
from vlmrm_gym.rewards.clip import Check, CLIPFields, check_count, checked, integer, of_type, one_of, optional
from vlmrm_gym.rewards.specification import resolve_reward
from vlmrm_gym.states import Quality

Environment = TypeVar("Environment", bound=type[Any])
Settings = Mapping[str, Any]
Camera = Settings | str | int
ScoringMode = Literal["episode", "step"]
Backend = Literal["process", "ray"]
TIMEOUTS: Mapping[str, float | None] = {"load": 3600.0, "draw": 300.0, "encode": 900.0, "schedule": 600.0}
"""Default `worker_timeouts`, in seconds."""


def _devices(name: str, value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError(f'`{name}` must be a list such as ["cuda:0", "cuda:1"]. Received {short_repr(value)}.')
    return list(value)


def _timeouts(name: str, value: Any) -> Mapping[str, float | None]:
    rule = f"`{name}` must be a mapping of {', '.join(map(repr, TIMEOUTS))} to seconds above 0 or None"
    if not isinstance(value, Mapping) or not value.keys() <= TIMEOUTS.keys():
        raise ValueError(f"{rule}. Received {short_repr(value)}.")
    for stage, seconds in value.items():
        if seconds is not None and (not is_number(seconds) or not 0 < seconds < math.inf):
            raise ValueError(f"{rule}. Received {short_repr(seconds)} for {short_repr(stage)}.")
    return value


_EPISODE_LOG = of_type(EpisodeLog, "an EpisodeLog")
_RAY_OPTIONS = of_type(Mapping, 'a mapping such as {"num_gpus": 0.25}')


def _has(check: Check | None, *marks: str) -> Mapping[str, Any]:
    """Metadata of an option: its check, and what holds of it.

    "vector": vector environments alone have it. "training": it is left out where agents are evaluated, since it decides
    when rewards arrive, or how many are interpolated. "resumable": it changes no reward, and may change when a training
    is resumed.
    """
    return dict.fromkeys(marks, True) | ({} if check is None else {"check": check})


@dataclass(frozen=True, kw_only=True)
class CameraOption:
    """Where states are seen from."""

    camera: Camera | Sequence[Camera] | None = None
    """MuJoCo only: a mapping of MuJoCo's camera settings (`distance`, `azimuth`, `elevation`, `lookat`, `trackbodyid`,
    `fixedcamid`, `type`, `orthographic`), such as {azimuth: 90, distance: 3}; the name or number of one of the model's
    cameras; a list of such, for several views; or a named set: "paper", "side", "front-side" or "around". None: that
    of the dataset or the task (for humanoids the paper's), else the environment's own."""


@dataclass(frozen=True, kw_only=True)
class ViewOptions(CameraOption):
    """How states are seen."""

    combine_views: str | Callable[..., Any] | None = None
    """How the rewards of several views make one: "min" (None: all views must agree), "mean", or your own,
    "package.module:attribute"; from Python also a function from float32 (B, V) to (B,), row by row."""


@dataclass(frozen=True, kw_only=True)
class DeviceOption:
    """Where models run."""

    device: str = field(default="auto", metadata=_has(None, "resumable"))
    """Where the model runs: "auto" (a GPU if there is one; with worker processes all GPUs), "cpu", "cuda", "cuda:1" or
    "mps"."""


@dataclass(frozen=True, kw_only=True)
class FileOptions(ViewOptions, DeviceOption):
    """The options that files and flags can say, too."""

    quality: Quality = field(default="fast", metadata=_has(one_of(Quality)))
    """MuJoCo only: "fast" leaves out shadows, reflections and antialiasing; "faithful" draws them."""
    task_reward_weight: float = field(default=0.0, metadata=_has(check_finite))
    """Weight of the environment's own reward, which is added to the model's."""
    scoring: ScoringMode = field(default="episode", metadata=_has(one_of(ScoringMode), "vector", "training"))
    """"episode": rewards arrive when the episode ends; "step": at once, in one batch a step."""
    score_every: int = field(default=1, metadata=_has(check_count, "vector", "training"))
    """Score the first, every so manyth and the last state of an episode (or of each part that is scored for itself),
    and interpolate the rewards of the others. Needs `scoring="episode"`."""
    num_workers: int = field(default=0, metadata=_has(integer(0, 1_000), "vector"))
    """Number of workers that draw and score. 0: the process of the environments."""
    backend: Backend = field(default="process", metadata=_has(one_of(Backend), "vector", "resumable"))
    """Where workers run: "process" on this machine, "ray" on a Ray cluster (that of `RAY_ADDRESS`, or the one that
    `ray.init` has connected to, or else a local one that ends with the environments)."""
    ray_options: Settings | None = field(default=None, metadata=_has(optional(_RAY_OPTIONS), "vector", "resumable"))
    """Options of the Ray actors, such as {num_gpus: 0.25}."""
    devices: Sequence[str] | None = field(default=None, metadata=_has(optional(_devices), "vector", "resumable"))
    """Devices of the worker processes, such as "cuda:0" and "cuda:1", taken in turn. None: see `device`. Not with Ray,
    which assigns GPUs by `num_gpus`."""
    overlap: bool = field(default=False, metadata=_has(check_flag, "vector", "training"))
    """Step on while episodes are scored: faster, but trainings are not reproducible. Needs `scoring="episode"`."""
    max_pending_bytes: int = field(default=2**30, metadata=_has(integer(1, 10**15), "vector", "resumable"))
    """Limit on the memory for states that wait to be scored. When it is reached, unfinished episodes are scored in
    parts, and steps wait."""
    worker_timeouts: Settings | None = field(default=None, metadata=_has(optional(_timeouts), "vector", "resumable"))
    """Seconds without progress after which a worker is replaced, as if it had died. The defaults are {load: 3600, draw:
    300, encode: 900}; None is no limit. Progress is the loaded model, 64 drawn frames, or the frames that the model
    encodes at once. With Ray also `schedule` (600): how long the first worker may wait for a place."""

    def keywords(self, *, vector: bool, training: bool = False) -> dict[str, Any]:
        """The options that a single or a vector environment takes, as keyword arguments; without those of None."""
        return {
            one.name: value
            for one in fields(FileOptions)
            if (vector or not one.metadata.get("vector")) and (training or not one.metadata.get("training"))
            if (value := getattr(self, one.name)) is not None
        }


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(FileOptions):
    """How environments are scored, and by what: their keywords, checked; `reward` is a specification."""

    reward: Any = None
    """Another reward: a specification such as `vlmrm_gym.CLIP(prompt=...)`, or its mapping form; a callable that maps
    frames, uint8 (B, H, W, 3), to numbers (B,); a class of such or of specifications; or "package.module:attribute",
    which names a callable or a class."""
    reward_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of a reward that is a callable (of each call) or a class (of its constructor)."""
    return_features: bool = field(default=False, metadata=_has(check_flag, "vector"))
    """Return the features that the rewards are made of, so that replay buffers can make all rewards anew with another
    head; see `head`. For a reward with `encode` and `head`, such as `CLIP`. Always so for a `Preference` that is yet to
    be learned."""
    episode_log: EpisodeLog | None = field(default=None, metadata=_has(optional(_EPISODE_LOG), "vector"))
    """Remembers the newest episodes, whose states can be drawn and scored again: an `EpisodeLog`. For a `Preference`
    that is yet to be learned None is one of 1 GiB."""

    def __post_init__(self) -> None:
        checked(self)
        if self.scoring == "step" and (self.overlap or self.score_every > 1):
            name = "overlap" if self.overlap else "score_every"
            raise ValueError(f'`{name}` needs scoring="episode": a step has its reward at once. Received "step".')
        if self.ray_options is not None and self.backend != "ray":
            received = f"{short_repr(self.ray_options)} and backend={self.backend!r}"
            raise ValueError(f'`ray_options` needs backend="ray". Received {received}.')

    @classmethod
    def of(cls, keywords: Mapping[str, Any], *, vector: bool) -> "ScoringOptions":
        """The options that the keywords of a single or a vector environment describe.

        Besides the options there may be `prompt` and the other fields of `CLIP`: short for a `reward` of them. A
        TypeError or ValueError names the keyword that is unknown, wrong, or says the same as another.
        """
        known = [one.name for one in option_fields(vector=vector)]
        for name in keywords:
            if name not in known and name in cls.__dataclass_fields__:
                rule = f"`{name}` is for vector environments only. Received {short_repr(keywords[name])}."
                raise TypeError(f"{rule} Make a VLMRewardVectorEnv, or call gymnasium.make_vec.")
        flat = {name: value for name, value in keywords.items() if name in known}
        clip = {name: value for name, value in keywords.items() if name not in (*flat, "prompt")}
        options, others = cls(**flat), [*known, *["autoreset_mode"] * vector]
        reward = resolve_reward(options.reward, options.reward_kwargs, keywords.get("prompt"), clip, others)
        weight = options.task_reward_weight + reward.task_reward_weight
        options = replace(options, reward=reward, reward_kwargs=None, task_reward_weight=weight)
        if vector and reward.terminates and options.scoring != "step":
            raise ValueError(
                '`terminate` of a success needs scoring="step": an episode that is scored when it has ended cannot end '
                f"sooner. Received {options.scoring!r}."
            )
        if not reward.in_workers:
            options = replace(options, num_workers=0, devices=None)
        if vector and reward.learns:
            log = EpisodeLog(2**30) if options.episode_log is None else options.episode_log
            options = replace(options, return_features=True, episode_log=log)
        return options

    @property
    def timeouts(self) -> Mapping[str, float | None]:
        """The limits for workers, in seconds; None: no limit."""
        return {**TIMEOUTS, **(self.worker_timeouts or {})}


def option_fields(*, vector: bool) -> list[Field[Any]]:
    """The fields of options that single, or vector environments have."""
    return [one for one in fields(ScoringOptions) if vector or not one.metadata.get("vector")]


@cache
def read_help(owner: type[Any]) -> Mapping[str, str]:
    """The docstrings of a dataclass's fields, by their names; those of its bases, too."""
    texts: dict[str, str] = {}
    for kind in reversed(owner.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(kind))
        except OSError:  # without sources there is no help, but all works
            return {}
        body = cast(ast.ClassDef, ast.parse(source).body[0]).body
        for one, after in pairwise(body):
            if isinstance(one, ast.AnnAssign) and isinstance(after, ast.Expr):
                texts[ast.unparse(one.target)] = " ".join(str(ast.literal_eval(after.value)).split())
    return texts


def takes_options(*, vector: bool) -> Callable[[Environment], Environment]:
    """Class decorator: the signature, and the docstring's arguments, list all options in place of `keywords`."""

    def decorate(environment: Environment) -> Environment:
        listed = [(one, ScoringOptions) for one in option_fields(vector=vector)]
        listed += [(one, CLIPFields) for one in fields(CLIPFields) if one.name != "prompt"]
        entries, parameters = [], []
        for one, kind in listed:
            entry = f"{one.name}: {read_help(kind).get(one.name, '')}"
            entries += textwrap.wrap(entry, 104, subsequent_indent=" " * 4, break_on_hyphens=False)
            hint = get_type_hints(kind)[one.name]
            parameters.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hint))
        construct: Any = environment.__init__
        signature = inspect.signature(construct)
        before = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        construct.__signature__ = signature.replace(parameters=[*before, *parameters])
        if environment.__doc__ is not None:
            listing = f"\n{' ' * 8}".join(entries)
            environment.__doc__ = re.sub("keywords: .*", lambda _: listing, environment.__doc__, count=1)
        return environment

    return decorate
