"""The bundled model's network: CLIP with a ResNet as its image tower, in plain PyTorch.

It is open_clip's architecture with the settings of `open_clip_config.json`, to the bit, and has the same names of
weights. Importing open_clip also imports torchvision, timm and transformers: 0.25 GB and several seconds of every
process, for a model of 20 MB.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

IMAGE_SIZE = 96
EMBED_DIM, IMAGE_WIDTH, IMAGE_HEADS = 128, 24, 12
TEXT_WIDTH, TEXT_HEADS, TEXT_LAYERS = 128, 4, 2
CONTEXT_LENGTH, VOCABULARY_SIZE = 77, 49_408


class Bottleneck(nn.Module):
    """A residual block; an average pool, not a stride of the convolution, scales down."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.avgpool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        shortcut = nn.AvgPool2d(stride), nn.Conv2d(channels, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = nn.Sequential(OrderedDict(zip(("-1", "0", "1"), shortcut, strict=True)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float (B, C, H, W) to (B, 4 * width, H / stride, W / stride)."""
        out = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out)).relu_()
        out = self.bn3(self.conv3(self.avgpool(out)))
        return out.add_(self.downsample(x)).relu_()


class AttentionPool(nn.Module):
    """Pools a feature map by the attention of its mean."""

    def __init__(self, size: int, width: int, heads: int, output_dim: int) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.empty(size**2 + 1, width))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, output_dim)
        self.num_heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float (B, C, H, W) to (B, output_dim)."""
        x = x.flatten(2).permute(2, 0, 1)  # (HW, B, C)
        x = torch.cat([x.mean(dim=0, keepdim=True), x])
        x = x + self.positional_embedding[:, None, :].to(x.dtype)
        heads = (project(x).unflatten(2, (self.num_heads, -1)) for project in (self.q_proj, self.k_proj, self.v_proj))
        pooled = F.scaled_dot_product_attention(*(each.permute(1, 2, 0, 3) for each in heads))  # (B, heads, 1 + HW, -1)
        return self.c_proj(pooled.permute(2, 0, 1, 3).flatten(2))[0]


class ImageTower(nn.Module):
    """Maps images to embeddings, and to the mean activations of its first stage, which tell scenes apart."""

    def __init__(self) -> None:
        super().__init__()
        width = IMAGE_WIDTH
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False)
        self.conv3 = nn.Conv2d(width // 2, width, 3, padding=1, bias=False)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(width // 2), nn.BatchNorm2d(width // 2), nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(Bottleneck(width, width, stride=1))
        self.layer2 = nn.Sequential(Bottleneck(4 * width, 2 * width, stride=2))
        self.layer3 = nn.Sequential(Bottleneck(8 * width, 4 * width, stride=2))
        self.layer4 = nn.Sequential(Bottleneck(16 * width, 8 * width, stride=2))
        self.attnpool = AttentionPool(IMAGE_SIZE // 32, 32 * width, IMAGE_HEADS, EMBED_DIM)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map float (B, 3, 96, 96) to (B, D), and float32 (B, C)."""
        x = self.bn1(self.conv1(x)).relu_()
        x = self.bn2(self.conv2(x)).relu_()
        x = self.layer1(F.avg_pool2d(self.bn3(self.conv3(x)).relu_(), 2))
        activations = x.mean((2, 3), dtype=torch.float32)
        return self.attnpool(self.layer4(self.layer3(self.layer2(x)))), activations


class LayerNorm(nn.LayerNorm):
    """Computes in float32 in every precision."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map float (..., C) to the same."""
        return super().forward(input.float()).to(input.dtype)


class TextBlock(nn.Module):
    """A block of the text tower's transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = LayerNorm(TEXT_WIDTH), LayerNorm(TEXT_WIDTH)
        self.attn = nn.MultiheadAttention(TEXT_WIDTH, TEXT_HEADS, batch_first=True)
        layers = nn.Linear(TEXT_WIDTH, 4 * TEXT_WIDTH), nn.GELU(), nn.Linear(4 * TEXT_WIDTH, TEXT_WIDTH)
        self.mlp = nn.Sequential(OrderedDict(zip(("c_fc", "gelu", "c_proj"), layers, strict=True)))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Map float (B, T, C) to the same."""
        normal = self.ln_1(x)
        x = x + self.attn(normal, normal, normal, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Network(nn.Module):
    """Both towers, with the methods of an `open_clip.CLIP`."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = ImageTower()
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList(TextBlock() for _ in range(TEXT_LAYERS))})
        self.token_embedding = nn.Embedding(VOCABULARY_SIZE, TEXT_WIDTH)
        self.positional_embedding = nn.Parameter(torch.empty(CONTEXT_LENGTH, TEXT_WIDTH))
        self.ln_final = LayerNorm(TEXT_WIDTH)
        self.text_projection = nn.Parameter(torch.empty(TEXT_WIDTH, EMBED_DIM))
        self.logit_scale = nn.Parameter(torch.empty(()))

    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        """Encode images: float (B, 3, 96, 96) to (B, D)."""
        return self.visual(images)[0]

    def encode_text(self, tokens: torch.Tensor) -> torch.Tensor:
        """Encode texts: int64 (B, 77) to float (B, D). A token sees itself and those before it."""
        dtype = self.text_projection.dtype
        x = self.token_embedding(tokens).to(dtype) + self.positional_embedding.to(dtype)
        mask = torch.full((CONTEXT_LENGTH, CONTEXT_LENGTH), -torch.inf, dtype=dtype, device=x.device).triu(1)
        for block in self.transformer["resblocks"].children():
            x = block(x, mask)
        x = self.ln_final(x)
        ends = tokens.argmax(dim=-1)  # the end token has the highest number
        return x[torch.arange(len(x), device=x.device), ends] @ self.text_projection


def make_network(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> Network:
    """Make the network with these weights; layers with matrices compute in `dtype`, the others in float32."""
    with torch.random.fork_rng(devices=()):  # the initial weights, replaced below, take no numbers from the user's
        network = Network()
    wanted = {name: tensor.dtype for name, tensor in network.state_dict().items()}
    network.load_state_dict({name: tensor.to(wanted.get(name)) for name, tensor in weights.items()}, assign=True)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.to(dtype)
        elif isinstance(module, nn.MultiheadAttention):
            for parameter in (module.in_proj_weight, module.in_proj_bias):
                parameter.data = parameter.data.to(dtype)
    network.text_projection.data = network.text_projection.data.to(dtype)
    return network
