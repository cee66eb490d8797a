"""Loading open_clip models: architectures with random weights, saved and loaded. Nothing is downloaded."""

import copy
import gc
import json
import os
import pickle
import shutil
import warnings
import weakref

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from vlmrm_gym import CLIPReward
from vlmrm_gym._util.errors import say_once
from vlmrm_gym.rewards import models, sources, tiny

PROMPT = "a humanoid robot kneeling"
WEIGHTS, SETTINGS = "open_clip_model.safetensors", "open_clip_config.json"
SIGLIP, SMALL = "ViT-B-16-SigLIP", "small-quickgelu"
# Published with the weights, or open_clip's default: mean, std, context length.
WANTED = {
    SIGLIP: ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 64),
    SMALL: ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), 77),
}


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    """A small architecture of open_clip's kind, with the activation of OpenAI's models."""
    vision = {"image_size": 224, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}
    text = {"context_length": 77, "vocab_size": 49_408, "width": 64, "heads": 2, "layers": 1}
    file = tmp_path_factory.mktemp("architectures") / f"{SMALL}.json"
    file.write_text(json.dumps({"embed_dim": 64, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}))
    open_clip.add_model_config(file)


def write_tokenizer(folder):
    """Write a byte-level tokenizer in the file format of SigLIP's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "</s>", "<unk>", *alphabet])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module", params=[SMALL, pytest.param(SIGLIP, marks=pytest.mark.slow)])
def checkpoint(request, tmp_path_factory):
    """(architecture, file, network) with random weights."""
    architecture = request.param
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(architecture)
    network = open_clip.create_model(architecture, load_weights=False).eval()
    file = folder / "weights.pt"
    torch.save(network.state_dict(), file)
    if architecture == SIGLIP:
        write_tokenizer(folder)
    yield architecture, file, network
    file.unlink()


def test_checkpoint_files_score_like_the_saved_network(checkpoint, rng):
    """Weights, tokenizer and formula, on frames of the model's own size; pixels are open_clip's own transform's."""
    architecture, file, network = checkpoint
    mean, std, context_length = WANTED[architecture]
    score = CLIPReward(f"{architecture}/{file}", prompt=PROMPT)
    frames = rng.integers(0, 256, (2, 60, 80, 3), dtype=np.uint8)
    transform = image_transform_v2(PreprocessCfg(size=224, mean=mean, std=std, resize_mode="squash"), is_train=False)
    expected = torch.stack([transform(Image.fromarray(frame)) for frame in frames])
    # Pillow and torch round the bicubic filter differently by one or two grey levels of 255.
    pixels = score.model.preprocessing()(torch.from_numpy(frames))
    np.testing.assert_allclose(pixels, expected, atol=2.01 / 255 / min(std))

    frames = rng.integers(0, 256, (3, 224, 224, 3), dtype=np.uint8)
    images = torch.from_numpy(frames).permute(0, 3, 1, 2) / 255 - torch.tensor(mean).view(3, 1, 1)
    images /= torch.tensor(std).view(3, 1, 1)
    if architecture == SIGLIP:
        ids = Tokenizer.from_file(str(file.parent / "tokenizer.json")).encode(PROMPT).ids
        tokens = torch.tensor([ids + [0] * (context_length - len(ids))])
    else:
        tokens = open_clip.get_tokenizer(architecture)([PROMPT])
    with torch.no_grad():
        expected = (network.encode_image(images, normalize=True) @ network.encode_text(tokens, normalize=True).T)[:, 0]
    np.testing.assert_allclose(score(frames), expected, atol=1e-5)
    with pytest.raises(ValueError, match=f"`prompt` must have at most {context_length} tokens"):
        CLIPReward(f"{architecture}/{file}", prompt="robot " * 100)


@pytest.mark.slow
def test_siglip_without_tokenizer_files_is_an_error(tmp_path):
    torch.save(open_clip.create_model(SIGLIP, load_weights=False).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(RuntimeError, match=rf"Put its files \(tokenizer.json, .*\) into {tmp_path}"):
        CLIPReward(f"{SIGLIP}/{tmp_path / 'weights.pt'}", prompt=PROMPT)


@pytest.fixture
def folder(tmp_path):
    """A copy of the bundled model, used as a local-dir."""
    for name in (SETTINGS, WEIGHTS):
        shutil.copy(tiny.FOLDER / name, tmp_path)
    return tmp_path


TEXTS = (
    PROMPT,
    "It's an  upright POLE, isn't it?",
    "caf\u00e9 &amp; 1234 \U0001f600",
    "<end_of_text> of robots",
    "x" * 90,
)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_bundled_network_is_open_clips_to_the_bit(precision):
    """Its code does not import open_clip, which reads the same folder."""
    bundled, other = (models.load(name, "cpu", precision) for name in ("tiny", f"local-dir:{tiny.FOLDER}"))
    images = torch.rand(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    assert type(bundled.network) is not type(other.network)
    assert bundled.digest == other.digest
    assert bundled.preprocessing() == other.preprocessing()
    assert torch.equal(bundled.encode_image(images), other.encode_image(images))
    assert torch.equal(bundled.encode_text(TEXTS), other.encode_text(TEXTS))
    assert torch.equal(bundled.tokenizer(TEXTS), other.tokenizer(TEXTS))
    assert [bundled.count_tokens(text) for text in TEXTS] == [other.count_tokens(text) for text in TEXTS]


def test_changed_weights_are_reloaded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    first = CLIPReward(f"local-dir:~/{folder.name}", prompt="an upright pole").model
    assert first.name == f"local-dir:{folder}"
    weights = load_file(folder / WEIGHTS)
    save_file({name: value * 0.5 for name, value in weights.items()}, folder / WEIGHTS)
    os.utime(folder / WEIGHTS, (1e9, 2e9))
    assert CLIPReward(f"local-dir:{folder}", prompt="an upright pole").model is not first


@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")
def test_copies_and_pickles_share_the_model(rng):
    """A deepcopy by gymnasium, or a pickle sent to a worker, must not carry gigabytes."""
    score = CLIPReward("tiny", prompt="an upright pole")
    frames = rng.integers(0, 256, (2, 96, 96, 3), dtype=np.uint8)
    assert len(pickle.dumps(score)) < 10_000
    for again in (copy.deepcopy(score), pickle.loads(pickle.dumps(score))):
        assert again.model is score.model
        np.testing.assert_array_equal(again(frames), score(frames))


def test_a_file_whose_preprocessing_or_activation_is_ambiguous_warns(tmp_path):
    """ViT-L-14 weights exist with OpenAI's mean and with 0.5; 13 architectures have weights that need QuickGELU."""
    file, warned = tmp_path / "openai.safetensors", []
    file.write_bytes(b"")
    for architecture in open_clip.list_models():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sources.parse_model_name(f"{architecture}/{file}")
        messages = [str(one.message) for one in caught if "activations" in str(one.message)]
        assert all(f'pass model="{architecture}-quickgelu/{file}"' in message for message in messages)
        warned += [architecture] * len(messages)
        if architecture == "ViT-L-14":
            assert "weights of ViT-L-14 come with different means and stds and activations" in messages[0]
    residual = ["RN50", "RN50x4", "RN50x16", "RN50x64", "RN101"]
    transformers = ["B-16", "B-32", "L-14", "L-14-336", "H-14", "H-14-378", "H-14-worldwide", "bigG-14"]
    assert sorted(warned) == sorted([*residual, *(f"ViT-{name}" for name in transformers)])


def test_names_that_people_know(capsys):
    """Of OpenAI's package, of Hugging Face, and an architecture alone: which of its weights are used is said once.

    open_clip only warns of the activation that OpenAI's weights were trained with.
    """
    say_once.cache_clear()
    for name, meant in {
        "ViT-B-32": "ViT-B-32/laion2b_s34b_b79k",
        "RN50": "RN50/openai",
        "ViT-B/32": "ViT-B-32/openai",
        "ViT-L/14@336px": "ViT-L-14-336/openai",
        "openai/clip-vit-base-patch16": "ViT-B-16/openai",
        "openai/clip-vit-large-patch14-336": "ViT-L-14-336/openai",
    }.items():
        for _ in range(2):
            source = sources.parse_model_name(name)
            assert source == sources.parse_model_name(meant)
            assert source.quick_gelu == meant.endswith("openai")
        said = capsys.readouterr().err
        assert said == ("" if "/" in name else f"`model`: {name!r} names no weights. Those of {meant!r} are used.\n")


NOT_LOADED = [
    ("ViT-B-33/laion2b_s34b_b79k", ValueError, r"`model` must be .*Received 'ViT-B-33.*architectures: ViT-B-32"),
    ("ViT-B-32/laion2b_s34b", ValueError, "Nearest tags: .*laion2b_s34b_b79k"),
    ("cnn:~nobody-has-this-name/head.safetensors", FileNotFoundError, "`model`: the file .* does not exist"),
    ("ViT-B-32/weights/missing.pt", FileNotFoundError, "checkpoint file 'weights/missing.pt' does not exist"),
    (f"ViT-B-32/{tiny.FOLDER}", FileNotFoundError, r"does not exist.*local-dir:that/folder"),
    ("local-dir:/etc", FileNotFoundError, "with an open_clip_config.json and weights. Received 'local-dir:/etc'"),
    ("ViT-B-32/laion2b_s34b_b79k", RuntimeError, r"could not be downloaded.*laion2B-s34B-b79K.*copy them"),
    ("hf-hub:a/b/c", RuntimeError, "'hf-hub:a/b/c' could not be downloaded .*HF Hub a/b/c"),
    (f"{SMALL}/{tiny.FOLDER / WEIGHTS}", ValueError, "checkpoint .* is not of this architecture. Received"),
]  # fmt: skip


def test_models_that_cannot_be_loaded():
    for model, error, message in NOT_LOADED:
        with pytest.raises(error, match=message):
            CLIPReward(model, prompt="a robot")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_damaged_model_folder_is_refused(folder):
    """In a sentence that names the folder."""
    for name, damage in [
        (WEIGHTS, lambda before: before[: len(before) // 2]),
        (WEIGHTS, lambda before: b"version https://git-lfs.github.com/spec/v1\n"),
        (WEIGHTS, None),
        (SETTINGS, lambda before: b"[]"),
        (SETTINGS, lambda before: before.replace(b'"embed_dim": 128', b'"embed_dim": 7')),
    ]:
        before = (folder / name).read_bytes()
        if damage is None:
            (folder / name).unlink()
        else:
            assert damage(before) != before
            (folder / name).write_bytes(damage(before))
        with pytest.raises((ValueError, FileNotFoundError)) as raised:
            CLIPReward(f"local-dir:{folder}", prompt="an upright pole")
        assert str(raised.value).startswith("`model`: ")
        assert str(folder) in str(raised.value)
        assert "Received" in str(raised.value)
        (folder / name).write_bytes(before)


def test_a_model_with_remote_code_is_refused(tmp_path):
    """Its tokenizer configuration would make transformers import a file of the folder."""
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "model")
    config = json.loads((folder / "open_clip_config.json").read_text())
    options = {"hf_tokenizer_name": "x", "tokenizer_kwargs": {"trust_remote_code": True}}
    config["model_cfg"]["text_cfg"] |= options
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["own.Own", None]}}))
    (folder / "own.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'made')!r})\nclass Own: pass\n")
    with pytest.raises(
        ValueError, match=r"`model`: .* asks to execute code .* \(trust_remote_code\), which is refused"
    ):
        CLIPReward(f"local-dir:{folder}", prompt=PROMPT)
    assert not (tmp_path / "made").exists()


def test_a_model_that_is_unloaded_and_not_used_is_freed():
    models.unload()
    reward = CLIPReward("tiny", prompt=PROMPT)
    network = weakref.ref(reward.model.network)
    assert CLIPReward("tiny", prompt=PROMPT).model is reward.model
    del reward
    gc.collect()
    assert network() is not None  # kept for the next reward
    models.unload()
    gc.collect()
    assert network() is None
