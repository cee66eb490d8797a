"""Training data of the bundled model: rendered states, tokenized captions, and the similarity of every pair."""

from dataclasses import dataclass

import numpy as np
import torch
from open_clip.tokenizer import SimpleTokenizer
from tqdm import tqdm

from bundled_model import captions
from bundled_model.domain import Domain
from bundled_model.domains import DOMAINS
from bundled_model.tokens import vocabulary
from vlmrm_gym.rewards.models import Preprocessing


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """States and captions, all in memory."""

    states: dict[str, np.ndarray]
    """States by domain, float64 (N, S) each."""
    images: torch.Tensor
    """uint8 (N, 3, height, width), domain after domain, on the training device."""
    image_counts: dict[str, int]
    """Number of images of each domain, in the order of `images`."""
    tokens: torch.Tensor
    """int64 (M, context length), on the training device."""
    lengths: np.ndarray
    """int64 (M,): the position of each caption's end token."""
    targets: "SimilarityTargets"


class SimilarityTargets:
    """Target cosine similarity of captions and states. Many captions share a meaning; each meaning is graded once.

    Args:
        meanings: One for each caption.
        states: States by domain, float64 (N, S) each.
        device: Where the targets are kept.
    """

    def __init__(self, meanings: list[captions.Meaning], states: dict[str, np.ndarray], device: str) -> None:
        self.distinct = list(dict.fromkeys(meanings))
        row_of = {meaning: i for i, meaning in enumerate(self.distinct)}
        self.num_meanings = len(self.distinct)
        self.table = self.grade(states).to(device)
        """float32 (meanings, states)."""
        self.rows = torch.tensor([row_of[meaning] for meaning in meanings], device=device)
        """The meaning of every caption, an index: int64 (captions,)."""

    def grade(self, states: dict[str, np.ndarray]) -> torch.Tensor:
        """Targets of every meaning with states by domain: float32 (meanings, states)."""
        described = {name: DOMAINS[name].describe(own_states) for name, own_states in states.items()}
        table = [
            np.concatenate(
                [
                    DOMAINS[name].similarity(meaning.attributes, described[name])
                    if meaning.domain == name
                    else np.zeros(len(own_states))
                    for name, own_states in states.items()
                ]
            )
            for meaning in self.distinct
        ]
        return torch.from_numpy(np.stack(table)).float()

    def __call__(self, caption: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """float32 (states, captions) for indices int64 (captions,) and int64 (states,)."""
        return self.table[self.rows[caption], state[:, None]]


def make_dataset(
    *,
    num_images: int,
    num_captions: int,
    max_tokens: int,
    seed: int,
    rng: np.random.Generator,
    preprocessing: Preprocessing,
    device: str,
) -> Dataset:
    """Sample states, render them, and generate captions.

    Args:
        num_images: About how many states are rendered, over all domains.
        num_captions: How many captions are generated.
        max_tokens: Longer captions are left out.
        seed: Of the captions.
        rng: Draws the states.
        preprocessing: Gives the images the size of the image tower.
        device: Where images, tokens and targets are kept.
    """
    total = sum(domain.share for domain in DOMAINS.values())
    states = {
        name: domain.sample_states(int(num_images * domain.share / total), rng) for name, domain in DOMAINS.items()
    }
    images = [render(domain, states[name], preprocessing) for name, domain in DOMAINS.items()]
    generated = captions.generate(num_captions, seed, vocabulary())
    tokenizer = SimpleTokenizer()
    tokens = torch.cat([tokenizer(text) for text, _ in tqdm(generated, desc="tokenizing")])
    short = tokens.argmax(1) < max_tokens
    meanings = [meaning for (_, meaning), keep in zip(generated, short.tolist(), strict=True) if keep]
    return Dataset(
        states=states,
        images=torch.cat(images).to(device),
        image_counts={name: len(own_states) for name, own_states in states.items()},
        tokens=tokens[short].to(device),
        lengths=tokens[short].argmax(1).numpy(),
        targets=SimilarityTargets(meanings, states, device),
    )


def render(domain: Domain, states: np.ndarray, preprocessing: Preprocessing) -> torch.Tensor:
    """States as images of the image tower's size, not normalised: uint8 (N, 3, height, width)."""
    images = torch.empty(len(states), 3, preprocessing.height, preprocessing.width, dtype=torch.uint8)
    renderers = domain.renderers(*preprocessing.render_size(*domain.shape))
    bounds = np.cumsum([0.0, *(share for _, share in renderers)]) * len(states)
    with tqdm(total=len(states), desc=f"rendering {domain.name}") as progress:
        for (renderer, _), start, end in zip(renderers, bounds[:-1].round(), bounds[1:].round(), strict=True):
            indices = np.arange(int(start), int(end))
            for batch in np.array_split(indices, max(1, len(indices) // 64)):
                frames = torch.from_numpy(renderer.render(states[batch]))
                images[batch] = preprocessing.fit(frames.permute(0, 3, 1, 2))
                progress.update(len(batch))
            renderer.close()
    return images
