"""A reward from videos of the task being done: `fit_demonstrations`, and `vlmrm-gym fit --videos`."""

import atexit
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error, said_warnings, say
from vlmrm_gym._util.files import atomic_write, atomic_write_text, output_folder
from vlmrm_gym._util.validation import check_integer
from vlmrm_gym.data.dataset_folder import DatasetFolder
from vlmrm_gym.data.frames import batch
from vlmrm_gym.data.recordings import Frames, Recording, of_array
from vlmrm_gym.data.rollouts import constant_actions, play, random_actions
from vlmrm_gym.rewards.clip import EncoderFields
from vlmrm_gym.rewards.hub import FILE
from vlmrm_gym.rewards.learned import Demonstrations
from vlmrm_gym.rewards.saved import HEAD
from vlmrm_gym.rewards.specification import check_names, save_reward
from vlmrm_gym.scoring.options import CameraOption, DeviceOption
from vlmrm_gym.states.states import States
from vlmrm_gym.tools.cli.settings import YAML, Texts, find_videos, parse, say_notes
from vlmrm_gym.tools.environments import NamedEnv
from vlmrm_gym.tools.segments import DatasetSegments

if TYPE_CHECKING:
    from vlmrm_gym.learning.demonstrations import Footage

FILES = (FILE, HEAD, "fit.json", "curves.png")
CNN = "cnn"
"""The encoder that is learned from the videos themselves."""
_STILL = 24
"""Levels, of 255, by which a pixel must change for something to move: more than what compression adds."""
_EPISODES = 6  # of random behaviour: two of each kind


@dataclass(frozen=True)
class FitVideos(CameraOption, DeviceOption):
    """Fit a reward to videos of the task being done: no actions, no labels (TimeRewarder).

        vlmrm-gym fit --videos recordings/ --out kneeling
        vlmrm-gym fit --videos a.mp4 b.gif pictures/ --env VLMRM/Humanoid-kneel-v0 --negatives random --out kneeling
        vlmrm-gym train VLMRM/Humanoid-kneel-v0 --reward kneeling/

    Some videos are held out. Of these it says how well the reward orders their frames, what it sees in them played
    backwards and cut, and in random behaviour and negatives; it warns where the reward can hardly work.

    The folder gets reward.json, for --reward of other commands; head.safetensors, which it names; fit.json, the
    figures; and curves.png.
    """

    videos: Texts
    """videos (MP4, GIF, WebM), folders of these, folders of pictures, Minari datasets whose observations are frames,
    and datasets of `vlmrm-gym dataset`"""
    out: Path = Path("demonstrations")
    """the folder to write"""
    encoder: str = CNN
    """cnn: a small network that is learned from the videos, for any world; or a vision-language model, frozen, as
    --model of other commands: tiny, Architecture/pretrained tag ..."""
    measure: Literal["step", "place"] = "step"
    """what is paid: the way that a step has covered, or the place of a state on the way"""
    negatives: Texts = ()
    """recordings of anything else, such as failures: in these nothing counts as progress; files as of videos, or
    random: six episodes of random behaviour in --env"""
    env: str | None = None
    """a registered ID: six episodes of random behaviour are measured, with actions drawn anew, held, or constant"""
    options: YAML = None
    """fields of vlmrm_gym.learning.VideoFitOptions, such as '{steps: 1000, held_out: 0.3}'"""
    seed: int = 0
    """of the networks' weights, of the pairs of frames, of what is held out, and of random behaviour"""
    overwrite: bool = False
    """replace earlier results in a folder that exists"""
    trust_code: bool = False
    """run the code that a dataset names, such as its environment"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    command = parse(FitVideos, "fit", arguments)
    _fit(command)
    say(f"Use it: {shlex.join(['vlmrm-gym', 'train', command.env or 'ID', '--reward', f'{command.out}/'])}")


def fit_demonstrations(videos: Any, **settings: Any) -> Demonstrations:
    """Fit a reward to videos of the task being done: `vlmrm-gym fit --videos` as a function.

    The settings are the flags, see `FitVideos`: `fit_demonstrations("recordings/", encoder="tiny", out="kneeling")`. A
    video may also be frames, uint8 (T, H, W, 3). Without `out` a temporary folder is written, which is removed when the
    process ends: `save` the reward. Raises an InputError if a video cannot be read, or shows nothing that moves; or a
    setting cannot be used.

    Returns:
        The reward. What was measured of it is printed, and in the folder, which has `FILES`.
    """
    if settings.get("out") is None:
        settings |= {"out": tempfile.mkdtemp(prefix="vlmrm_gym_"), "overwrite": True}
        atexit.register(shutil.rmtree, settings["out"], ignore_errors=True)
    return _fit(FitVideos(videos=videos, **{**settings, "out": Path(settings["out"])}))


def _fit(command: FitVideos) -> Demonstrations:
    from vlmrm_gym.learning.demonstrations import VideoFitOptions

    options = command.options or {}
    with as_input_error(TypeError):
        check_integer("seed", command.seed, minimum=0)
        check_names("a field of VideoFitOptions", options, [one.name for one in fields(VideoFitOptions)])
        options = VideoFitOptions(**options)
    with output_folder(command.out.resolve(), overwrite=command.overwrite) as folder, ExitStack() as opened:
        recordings = _find(command.videos, command, opened)
        if not recordings:
            raise InputError("`videos` must have at least one recording. Received none.")
        steps = max(1, int(np.median([one.source.count for one in recordings])) - 1)
        negatives = _find(command.negatives, command, opened, steps)
        random = [] if command.env is None else _play(command, opened, steps)
        return _learn(command, options, folder, recordings, negatives, random)


def _find(videos: Any, command: FitVideos, opened: ExitStack, steps: int | None = None) -> list[Recording]:
    """Find recordings; if `steps` is given, "random" stands for episodes of so many steps."""
    if isinstance(videos, str | os.PathLike) or (isinstance(videos, np.ndarray) and videos.ndim == 4):
        videos = [videos]
    recordings: list[Recording] = []
    for number, given in enumerate(() if videos is None else videos):
        if not isinstance(given, str | os.PathLike):
            with as_input_error(TypeError):
                recordings.append(of_array(given, f"recording {number}"))
        elif given == "random" and steps is not None:
            recordings += _play(command, opened, steps, first=_EPISODES)
        elif DatasetFolder(Path(given)).settings() is not None:
            segments = opened.enter_context(DatasetSegments(Path(given), command.camera, trust_code=command.trust_code))
            for episode, one in enumerate(segments.rollouts):
                recordings += _by_view(f"{given}, episode {episode}", segments, one.with_initial)
        else:
            recordings += find_videos(Path(given))
    for one in recordings:
        if one.source.count < 2:
            raise InputError(f"{one.name} must have at least two frames. Received {one.source.count}.")
    say_notes(one.source for one in recordings)
    return recordings


def _by_view(name: str, named: NamedEnv, states: States) -> list[Recording]:
    """Make a recording of each view of an episode, whose frames are drawn as they are needed."""

    def draw(view: int, part: slice) -> NDArray[np.uint8]:
        return named.draw(states[part])[:, view]

    count = named.view.num_views
    names = [f"{name}, view {view}" if count > 1 else name for view in range(count)]
    return [Recording(one, Frames(len(states), partial(draw, view))) for view, one in enumerate(names)]


def _play(command: FitVideos, opened: ExitStack, steps: int, first: int = 0) -> list[Recording]:
    """Play episodes from number `first` on: by turns, actions are drawn anew, held for ten steps, or constant."""
    if command.env is None:
        raise InputError("`negatives` of random behaviour need `env`, the ID of an environment. Received none.")
    named = opened.enter_context(NamedEnv(command.env, camera=command.camera))
    played = []
    for number in range(first, first + _EPISODES):
        make = (random_actions, partial(constant_actions, hold=10), constant_actions)[number % 3]
        seed = command.seed + number  # the environment's own generator has the seed alone
        act = make(named.env.action_space, np.random.default_rng([seed, 1]))
        states = play(named.env, named.view, act, seed=seed, steps=steps).with_initial
        played += _by_view(f"random episode {number}", named, states)
    return played


def _learn(
    command: FitVideos,
    options: Any,
    folder: Path,
    recordings: Sequence[Recording],
    negatives: Sequence[Recording],
    random: Sequence[Recording],
) -> Demonstrations:
    import torch

    from vlmrm_gym.learning.demonstrations import encode, fit_network, split
    from vlmrm_gym.learning.demonstrations_report import draw_curves, measure
    from vlmrm_gym.rewards.devices import resolve_device
    from vlmrm_gym.rewards.distance import DistanceNetwork
    from vlmrm_gym.rewards.encoder import FrameEncoder

    tower = None
    with as_input_error(DependencyNotInstalled, OSError, RuntimeError), said_warnings():
        target = resolve_device(command.device)
        if command.encoder != CNN:
            tower = FrameEncoder(EncoderFields(model=command.encoder), command.device)
    count = sum(len(one.taken) for one in (*recordings, *negatives, *random))
    with tqdm(total=count, unit=" frames", file=sys.stderr) as bar:
        samples = _read(recordings, tower, bar.update)
        others = _read(negatives, tower, bar.update, may_be_still=True)
        others = [one._replace(places=torch.zeros_like(one.places)) for one in others]
        shown = _read(random, tower, bar.update, may_be_still=True)
    made_by: dict[str, Any] = {}
    if tower is not None:
        made_by = {"size": samples[0].data.shape[1], "model": tower.model.name, "fingerprint": tower.fingerprint}
    frames = float(np.mean([one.source.count - 1 for one in recordings]))
    network = DistanceNetwork(**made_by, frames=frames, seed=command.seed)
    chosen, kept = split(len(samples), options, command.seed)
    fitted, held_out = [samples[i] for i in chosen], [samples[i] for i in kept]
    trained, tested = split(len(others), options, command.seed) if held_out else (range(len(others)), [])
    contrast, held_out_contrast = [others[i] for i in trained], [others[i] for i in tested]
    with tqdm(total=options.steps, unit=" steps", file=sys.stderr) as bar:

        def progress(step: int, loss: float) -> None:
            bar.update(step - bar.n)
            if not math.isnan(loss):
                bar.set_postfix_str(f"held-out loss={loss:.3f}")

        figures = fit_network(
            network,
            fitted + contrast,
            held_out + held_out_contrast,
            options,
            device=target,
            seed=command.seed,
            say=progress,
        )
    cpu, of = torch.device("cpu"), "held out" if held_out else "fitted"
    encoded, *rest = ([encode(network, one.data, cpu) for one in part] for part in (samples, shown, held_out_contrast))
    features = [(encoded[i], samples[i].places) for i in (kept or chosen)]
    network.remember(encoded)
    if tower is None:
        network.name_tower()
    measures, curves = measure(network, of, features, *rest)
    network.save(folder / HEAD)
    spec = Demonstrations(head=str(folder / HEAD), measure=command.measure)
    save_reward(spec, folder)
    settings = {"encoder": command.encoder, "seed": command.seed, "options": asdict(options)}
    used = {"fitted": fitted, "held_out": held_out, "negatives": contrast, "held_out_negatives": held_out_contrast}
    names = {part: [one.name for one in footage] for part, footage in used.items()}
    values = {"measures": measures.as_json(), **figures, "videos": names, **settings}
    atomic_write_text(folder / FILES[2], json.dumps(values, indent=2))
    atomic_write(folder / FILES[3], lambda path: draw_curves(curves, path))
    _say(measures, len(features))
    return spec


def _read(recordings: Sequence[Recording], tower: Any, update: Any, *, may_be_still: bool = False) -> "list[Footage]":
    """Read recordings: features by a tower, or small pictures for one to learn from."""
    import torch

    from vlmrm_gym.learning.demonstrations import Footage
    from vlmrm_gym.rewards.distance import PREPROCESSING
    from vlmrm_gym.rewards.models import make_preprocessing

    fit = make_preprocessing(PREPROCESSING).fit
    samples, sizes = [], set[tuple[int, ...]]()
    for one in recordings:
        parts, first, moves = list[Any](), None, may_be_still
        for frames in batch(one.frames(), 64):
            stacked = np.stack([frame.frame for frame in frames])
            sizes.add(stacked.shape[1:3])
            first = stacked[0].astype(np.int16) if first is None else first
            moves = moves or first.shape != stacked.shape[1:] or bool((np.abs(stacked - first) > _STILL).any())
            if tower is None:
                parts.append(fit(torch.from_numpy(stacked).permute(0, 3, 1, 2)).contiguous())
            else:
                parts.append(tower.encode(stacked).cpu())
            update(len(stacked))
        if not moves:
            raise InputError(f"{one.name} must show something that moves. Received {len(one.taken)} equal frames.")
        samples.append(Footage(one.name, torch.cat(parts), torch.from_numpy(one.places).float()))
    if len(sizes) > 1 and not may_be_still:
        some = ", ".join(f"{width} x {height}" for height, width in sorted(sizes)[:5])
        say(f"The recordings have {len(sizes)} sizes ({some}). All are resized to that of the encoder.", error=True)
    return samples


def _say(measures: Any, count: int) -> None:
    what = f"{count} held-out recordings" if measures.of == "held out" else "The recordings that it was fitted to"
    if measures.of != "held out":
        say("No recording was held out, so these figures flatter: pass at least two.", error=True)
    others = {"random behaviour reaches": measures.random, "held-out negatives reach": measures.negatives}
    reached = "".join(f"; {said} {value:.2f}" for said, value in others.items() if value is not None)
    say(
        f"{what}: rank correlation with time {measures.order:.2f}; progress at the end {measures.end:.2f}, played "
        f"backwards {measures.backwards:.2f}, cut in half {measures.cut:.2f}{reached}"
    )
    for warning in measures.warnings:
        say(f"Warning: {warning}", error=True)
