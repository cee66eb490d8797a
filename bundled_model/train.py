"""Train the bundled model: `python -m bundled_model.train` (needs the extra "dev").

1. Render states of every domain, and generate captions with the similarity that each should have with every state
   (`dataset.py`, `captions.py`, `domains/`).
2. Train the image tower by regression: the cosine similarity of every image with every *meaning* should be what the
   simulator's state says. CLIP's usual contrastive loss knows matching pairs only. Each meaning has a free vector in
   this phase, so no text is encoded.
3. Rounds: search for humanoid states whose rewards are wrong (`mining.py`), add them to the data, and train on.
4. Initialise the token embeddings with vectors of a sentence encoder (all-MiniLM-L6-v2), so that words which no caption
   uses start near their synonyms, and train the text tower on the same targets, with the image tower frozen.

With `--start`, training continues from weights: step 2 is left out, the free vectors start from the text tower's, and
the token embeddings stay. The seed is fixed.
"""

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file

from bundled_model.captions import Meaning
from bundled_model.dataset import make_dataset, render
from bundled_model.domains import humanoid
from bundled_model.mining import TASK_ATTRIBUTES, mine
from bundled_model.optimise import optimise
from bundled_model.tokens import encode_text, sentence_encoder_vectors
from vlmrm_gym.rewards import tiny
from vlmrm_gym.rewards.models import Preprocessing

FOLDER = tiny.ANCHORS.parent
WEIGHTS = "open_clip_model.safetensors"
TOKEN_STD = 0.05
"""Standard deviation of the token embeddings before training."""
FROZEN = ("conv", "bn", "layer1")
"""Layers of the image tower that are trained from scratch only: those nearest to the pixels take half of the time."""
ANCHOR_COUNT = 192
"""Number of images of each domain whose embeddings are kept as anchors for `tiny.in_domain`."""


@dataclass(kw_only=True)
class Args:
    """Training settings."""

    out: Path = FOLDER
    """folder for open_clip_model.safetensors and anchors.safetensors"""
    seed: int = 0
    """seed of weights, states and captions"""
    start: Path | None = None
    """folder with the weights to continue from; from scratch without"""
    mined: tuple[Path, ...] = ()
    """files of states mined by earlier rounds, which are added to the data, drawn from all views"""
    rounds: int = 3
    """rounds of mining and training on"""
    images: int = 40_000
    """number of states to render"""
    mined_images: int = 10_000
    """number of mined images that a round adds at most"""
    mining_lines: int = 40
    """lines of descent of each of a round's searches"""
    mining_rounds: int = 6
    """rounds of mutation of each of a round's searches"""
    captions: int = 400_000
    """number of captions to generate"""
    image_steps: int = 4_500
    """training steps of the image tower from scratch"""
    round_steps: int = 1_800
    """training steps of the image tower in each round"""
    text_steps: int = 7_000
    """training steps of the text tower, afterwards"""
    longest_caption: int = 32
    """maximum tokens of a caption; a batch is as long as its longest caption, so longer ones are left out"""
    image_batch: int = 128
    """images per step, half of them mined once there are any"""
    text_batch: int = 256
    """captions per step"""
    learning_rate: float = 2e-3
    """peak learning rate of the phases from scratch: linear warm-up, then a cosine to zero"""
    round_learning_rate: float = 1e-3
    """peak learning rate where training continues"""
    task_weight: float = 0.5
    """fraction of the image tower's loss that is about the meanings of the humanoid tasks' prompts"""
    overpaid_weight: float = 2.0
    """how much more an image counts, for those meanings, whose similarity is too high"""
    embedding_noise: float = 0.3
    """noise on token embeddings, in units of their standard deviation: makes a word mean what its neighbours mean"""
    threads: int = 2
    """CPU threads of torch"""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """device to train on"""


class Training:
    """Model and data, and the training phases.

    Args:
        args: Training settings.
    """

    def __init__(self, args: Args) -> None:
        torch.manual_seed(args.seed)
        self.args, self.rng = args, np.random.default_rng(args.seed)
        config = json.loads((FOLDER / "open_clip_config.json").read_text())
        cfg = config["preprocess_cfg"]
        self.preprocessing = Preprocessing(
            height=cfg["size"][0],
            width=cfg["size"][1],
            mean=tuple(cfg["mean"]),
            std=tuple(cfg["std"]),
            interpolation=cfg["interpolation"],
        )
        self.model: Any = CLIP(**config["model_cfg"]).to(args.device).to(memory_format=torch.channels_last)
        if args.start:
            self.model.load_state_dict(load_file(args.start / WEIGHTS))
        else:
            vectors = sentence_encoder_vectors(self.model.token_embedding.embedding_dim, args.device)
            with torch.no_grad():
                self.model.token_embedding.weight.copy_(vectors * (TOKEN_STD / vectors.std()))
        self.data = make_dataset(
            num_images=args.images,
            num_captions=args.captions,
            max_tokens=args.longest_caption,
            seed=args.seed,
            rng=self.rng,
            preprocessing=self.preprocessing,
            device=args.device,
        )
        targets = self.data.targets
        self.images, self.table = self.data.images, targets.table
        """The images of the data and the mined ones, and the targets of all."""
        self.task_rows = torch.tensor(
            [targets.distinct.index(Meaning("humanoid", x)) for x in TASK_ATTRIBUTES.values()]
        )
        self.vectors = torch.nn.Embedding(targets.num_meanings, self.model.text_projection.shape[1]).to(args.device)
        torch.nn.init.normal_(self.vectors.weight, std=0.1)  # short vectors change direction faster
        if args.start:
            self.vectors.weight.data.copy_(self.text_of_meanings())

    @torch.no_grad()
    def text_of_meanings(self) -> torch.Tensor:
        """The text tower's mean vector of the captions of every meaning: float32 (meanings, D)."""
        total = torch.zeros_like(self.vectors.weight)
        for part in torch.arange(min(40_000, len(self.data.tokens))).split(512):
            total.index_add_(0, self.data.targets.rows[part], encode_text(self.model, self.data.tokens[part]))
        return F.normalize(total + 1e-3 * self.vectors.weight, dim=-1)

    def encode_images(self, images: torch.Tensor) -> torch.Tensor:
        """Unit vectors of images: uint8 (B, 3, height, width) to float32 (B, D)."""
        return F.normalize(self.model.encode_image(self.preprocessing(images.permute(0, 2, 3, 1))).float(), dim=-1)

    def sample_images(self) -> torch.Tensor:
        """Indices of random images, half of them mined if there are any: int64 (image_batch,)."""
        first, total, count = len(self.data.images), len(self.images), self.args.image_batch
        mined = count // 2 if total > first else 0
        drawn = (
            self.rng.integers(first, size=count - mined),
            self.rng.integers(first, total, size=mined) if mined else [],
        )
        return torch.from_numpy(np.concatenate(drawn).astype(np.int64)).to(self.args.device)

    def sample_captions(self) -> torch.Tensor:
        """Indices of random captions of similar length: int64 (text_batch,)."""
        # One quarter, by length, of a draw four times as large: little of the batch is padding.
        drawn = self.rng.integers(len(self.data.tokens), size=4 * self.args.text_batch)
        quarters = drawn[np.argsort(self.data.lengths[drawn], kind="stable")].reshape(4, -1)
        return torch.from_numpy(quarters[self.rng.integers(4)]).to(self.args.device)

    def train_image_tower(self, steps: int, learning_rate: float, *, first: bool) -> None:
        """Train the image tower against one free vector per meaning in place of the text tower.

        Where training continues, the first layers and the statistics of all batch normalisations stay as they are.
        """
        self.model.train(first)
        for name, parameter in self.model.visual.named_parameters():
            parameter.requires_grad_(first or not name.startswith(FROZEN))
        counts = torch.bincount(self.data.targets.rows, minlength=self.data.targets.num_meanings)
        weights = (1 - self.args.task_weight) * counts / counts.sum()
        weights[self.task_rows] += self.args.task_weight / len(self.task_rows)
        overpaid = torch.zeros_like(weights)
        overpaid[self.task_rows] = self.args.overpaid_weight

        def loss() -> torch.Tensor:
            drawn = self.sample_images()
            with torch.autocast(torch.device(self.args.device).type, torch.bfloat16):
                images = self.encode_images(self.images[drawn])
            error = images @ F.normalize(self.vectors.weight, dim=-1).T - self.table[:, drawn].T
            return (error.square() * (1 + overpaid * (error > 0)) * weights).sum(1).mean()

        parameters = [
            {"params": [parameter for parameter in self.model.visual.parameters() if parameter.requires_grad]},
            {"params": list(self.vectors.parameters()), "weight_decay": 0.0},
        ]
        optimise(parameters, steps, loss, "image tower", learning_rate)

    def add_mined(self, number: int) -> None:
        """Mine states that fool the image tower, and add them to its data."""
        self.model.eval()

        @torch.no_grad()
        def encode(images: torch.Tensor) -> torch.Tensor:
            with torch.autocast(torch.device(self.args.device).type, torch.bfloat16):
                return self.encode_images(images.to(self.args.device)).cpu()

        goals = F.normalize(self.vectors.weight.detach()[self.task_rows], dim=-1).cpu().numpy()
        mined = mine(
            encode,
            self.preprocessing,
            goals,
            count=self.args.mined_images,
            lines=self.args.mining_lines,
            rounds=self.args.mining_rounds,
            seed=self.args.seed + 10_000 * (number + 1),
        )
        self.args.out.mkdir(parents=True, exist_ok=True)
        np.save(self.args.out / f"mined_{number}.npy", mined.states)
        self.add_humanoid(mined.states, mined.images)

    def add_humanoid(self, states: np.ndarray, images: torch.Tensor) -> None:
        """Add humanoid states and their images to the mined part of the data."""
        none = {name: own_states[:0] for name, own_states in self.data.states.items()}
        self.images = torch.cat([self.images, images.to(self.args.device)])
        table = self.data.targets.grade(none | {"humanoid": states}).to(self.args.device)
        self.table = torch.cat([self.table, table], dim=1)

    def train_text_tower(self, learning_rate: float) -> torch.Tensor:
        """Train the text tower against the frozen image tower. Returns the unit vectors of all images, (N, D)."""
        self.model.eval()
        with torch.no_grad():
            images = torch.cat([self.encode_images(batch) for batch in self.images.split(256)])

        def loss() -> torch.Tensor:
            state, caption = self.rng.integers(len(images), size=1024), self.sample_captions()
            text = encode_text(self.model, self.data.tokens[caption], self.args.embedding_noise * TOKEN_STD)
            drawn = torch.from_numpy(state).to(self.args.device)
            return F.mse_loss(images[drawn] @ text.T, self.table[self.data.targets.rows[caption], drawn[:, None]])

        optimise(self.text_parameters(), self.args.text_steps, loss, "text tower", learning_rate)
        return images

    def text_parameters(self) -> list[dict[str, Any]]:
        """Parameter groups of the text tower; the token embeddings, which are initialised, learn slowly."""
        others = ("visual.", "logit_scale", "token_embedding")
        text = [value for name, value in self.model.named_parameters() if not name.startswith(others)]
        tokens = [self.model.token_embedding.weight]
        return [{"params": text}, {"params": tokens, "slower": 0.2, "weight_decay": 0.0}]

    def save_weights(self) -> None:
        """Write weights and configuration into a folder that `local-dir:` loads."""
        out = self.args.out
        out.mkdir(parents=True, exist_ok=True)
        if out.resolve() != FOLDER.resolve():
            shutil.copy(FOLDER / "open_clip_config.json", out)
        weights = {name: value.half().contiguous().cpu() for name, value in self.model.state_dict().items()}
        save_file(weights, out / WEIGHTS)

    def save_anchors(self, images: torch.Tensor) -> None:
        """Write some of the unit vectors of all images, for `tiny.in_domain`."""
        counts = self.data.image_counts
        of_data = images[: sum(counts.values())].split(list(counts.values()))
        anchors = {
            name: own_images[torch.randperm(len(own_images))[:ANCHOR_COUNT]].half().contiguous().cpu()
            for name, own_images in zip(counts, of_data, strict=True)
        }
        save_file(anchors, self.args.out / "anchors.safetensors")


def main(args: Args) -> None:
    """Train, and write a folder that `model="local-dir:..."` loads."""
    start_time = time.monotonic()
    torch.set_num_threads(args.threads)
    training = Training(args)
    for path in args.mined:
        states = np.load(path)
        training.add_humanoid(states, render(humanoid.DOMAIN, states, training.preprocessing))
    if args.start is None:
        training.train_image_tower(args.image_steps, args.learning_rate, first=True)
    for number in range(len(args.mined), len(args.mined) + args.rounds):
        training.add_mined(number)
        training.train_image_tower(args.round_steps, args.round_learning_rate, first=False)
        training.save_weights()
        print(f"round {number}: {(time.monotonic() - start_time) / 60:.1f} minutes", flush=True)
    images = training.train_text_tower(args.round_learning_rate if args.start else args.learning_rate)
    training.save_weights()
    training.save_anchors(images)
    print(f"{args.out}: made in {(time.monotonic() - start_time) / 60:.1f} minutes")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
