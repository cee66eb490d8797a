"""Any open_clip model: real architectures with random weights, written to disk and read back. Nothing is downloaded."""

import json

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from vlmrm_gym import CLIPReward

PROMPTS = ["a humanoid robot kneeling", "a humanoid robot standing up"]
SIGLIP_MEAN = (0.5, 0.5, 0.5)
OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)


def write_tokenizer(folder):
    """A byte-level tokenizer in the files that SigLIP's own comes in."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "</s>", "<unk>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module", params=["ViT-B-32", "ViT-B-16-SigLIP", "RN50"])
def checkpoint(request, tmp_path_factory):
    """(architecture, file, network) of a real architecture with random weights."""
    architecture = request.param
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(architecture)
    network = open_clip.create_model(architecture, load_weights=False).eval()
    # Random weights barely react to their input: spread the embeddings out, so that a wrong preprocessing would show.
    file = folder / "weights.pt"
    torch.save(network.state_dict(), file)
    if "SigLIP" in architecture:
        write_tokenizer(folder)
    yield architecture, file, network
    file.unlink()


def test_checkpoint_files_score_like_open_clip_itself(checkpoint, rng):
    """Own tokenizer, mean, std, image size and interpolation: against open_clip's own transform and towers."""
    architecture, file, network = checkpoint
    score = CLIPReward(f"{architecture}/{file}", prompt=PROMPTS[0], baseline=PROMPTS[1], alpha=0.0)
    frames = rng.integers(0, 256, (3, 60, 80, 3), dtype=np.uint8)

    mean = SIGLIP_MEAN if "SigLIP" in architecture else OPENAI_MEAN
    assert score.model.preprocessing().mean == mean
    transform = image_transform_v2(
        PreprocessCfg(size=224, mean=mean, std=score.model.preprocessing().std, resize_mode="squash"), is_train=False
    )
    images = torch.stack([transform(Image.fromarray(frame)) for frame in frames])
    # Pillow and torch round the bicubic filter differently by one or two grey levels of 255.
    np.testing.assert_allclose(score._preprocess(torch.from_numpy(frames)), images, atol=2.01 / 255 / 0.26)

    with torch.no_grad():
        tokens = score.model.tokenizer(PROMPTS[:1])
        expected = (network.encode_image(images, normalize=True) @ network.encode_text(tokens, normalize=True).T)[:, 0]
    np.testing.assert_allclose(score(frames), expected, atol=2e-3)


def test_prompt_limit_is_the_models_own(checkpoint):
    architecture, file, _ = checkpoint
    limit = 64 if "SigLIP" in architecture else 77
    with pytest.raises(ValueError, match=f"`prompt` must have at most {limit} tokens"):
        CLIPReward(f"{architecture}/{file}", prompt="robot " * 100)


def test_local_dir(tmp_path):
    """The bundled model, reached as a user's own folder."""
    from vlmrm_gym.rewards.models import TINY_FOLDER

    frames = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), dtype=np.uint8)
    prompt = "an upright pole"
    expected = CLIPReward(prompt=prompt)(frames)
    np.testing.assert_array_equal(CLIPReward(f"local-dir:{TINY_FOLDER}", prompt=prompt)(frames), expected)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("ViT-B-33/laion2b_s34b_b79k", ValueError, r"`model` must be .*Received 'ViT-B-33.*architectures: ViT-B-32"),
        ("tinny", ValueError, "Nearest architectures: tiny"),
        ("ViT-B-32/laion2b_s34b", ValueError, "Nearest tags: .*laion2b_s34b_b79k"),
        ("ViT-B-32", ValueError, "must name weights of ViT-B-32"),
        ("", ValueError, "`model` must be"),
        (None, TypeError, "`model` must be a string"),
        ("ViT-B-32/weights/missing.pt", FileNotFoundError, "checkpoint file 'weights/missing.pt' does not exist"),
        ("ViT-B-32/missing.safetensors", FileNotFoundError, "does not exist"),
        ("local-dir:nowhere", FileNotFoundError, "local-dir must be a folder with an open_clip_config.json"),
        ("ViT-B-32/laion2b_s34b_b79k", RuntimeError, r"could not be downloaded.*laion2B-s34B-b79K.*copy them"),
        ("hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K", RuntimeError, r"could not be downloaded.*local-dir"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_had(model, error, message):
    with pytest.raises(error, match=message):
        CLIPReward(model, prompt="a robot")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut off"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_damaged_checkpoint(tmp_path, content, suffix):
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"`model`: the checkpoint .* is damaged, or is not of this architecture"):
        CLIPReward(f"RN50/{file}", prompt="a robot")


def test_checkpoint_of_another_architecture(tmp_path):
    from vlmrm_gym.rewards.models import TINY_FOLDER

    with pytest.raises(ValueError, match="is not of this architecture"):
        CLIPReward(f"RN50/{TINY_FOLDER / 'open_clip_model.safetensors'}", prompt="a robot")


def test_folder_without_weights(tmp_path):
    from vlmrm_gym.rewards.models import TINY_FOLDER

    (tmp_path / "open_clip_config.json").write_text((TINY_FOLDER / "open_clip_config.json").read_text())
    with pytest.raises(ValueError, match="is damaged, or is not of this architecture"):
        CLIPReward(f"local-dir:{tmp_path}", prompt="a robot")
