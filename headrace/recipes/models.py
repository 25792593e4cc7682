"""The models of the recipes, as chains of layers that a pipeline can cut anywhere."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "Block",
    "Embedding",
    "Pixels",
    "byte_gpt",
    "convolutional_net",
    "generate",
    "next_byte_loss",
]


class Embedding(nn.Module):
    """Bytes and their places as vectors: (records, length) uint8 -> (records, length, width)."""

    def __init__(self, width: int, max_length: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, width)
        self.place = nn.Embedding(max_length, width)
        for table in (self.byte, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Adds up the two vectors of each byte."""
        places = torch.arange(text.shape[1], device=text.device)
        return self.byte(text.int()) + self.place(places)  # type: ignore[no-any-return]


class Block(nn.Module):
    """One decoder block of a transformer: each byte looks at itself and those before it.

    (records, length, width) -> the same. Layer norm comes first in each half (GPT-2's layout).
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the two-layer network, each added to what came in."""
        x = x + self._attend(self.attention_norm(x))
        return x + self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh"))  # type: ignore[no-any-return]

    def _attend(self, x: Tensor) -> Tensor:
        records, length, width = x.shape
        heads = self.queries_keys_values(x).view(records, length, 3, self.num_heads, -1)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        joined = mixed.transpose(1, 2).reshape(records, length, width)
        return self.attention_out(joined)  # type: ignore[no-any-return]


def byte_gpt(
    *, width: int = 128, num_blocks: int = 6, num_heads: int = 4, max_length: int = 256
) -> nn.Sequential:
    """A small decoder-only transformer over bytes: (records, length) uint8 -> (..., 256) logits."""
    blocks = [(f"block{number}", Block(width, num_heads)) for number in range(num_blocks)]
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            [
                ("embedding", Embedding(width, max_length)),
                *blocks,
                ("norm", nn.LayerNorm(width)),
                ("head", nn.Linear(width, 256)),
            ]
        )
    )


def next_byte_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Cross-entropy per byte in nats: (records, length, 256) against (records, length) uint8."""
    return functional.cross_entropy(logits.flatten(0, 1), following.flatten().long())


@torch.no_grad()
def generate(
    model: nn.Module, prompt: bytes, num_bytes: int, *, max_length: int, seed: int = 0
) -> bytes:
    """Continues a text byte by byte, each drawn from the model's distribution sharpened a little.

    Args:
        model: as `byte_gpt` makes it.
        prompt: at least one byte.
        num_bytes: how many to add.
        max_length: the most bytes that the model looks at.
        seed: of the draws.
    """
    random = torch.Generator().manual_seed(seed)
    text = torch.tensor([list(prompt)], dtype=torch.uint8)
    for _ in range(num_bytes):
        logits = model(text[:, -max_length:])[0, -1]
        drawn = torch.multinomial(torch.softmax(logits / 0.6, 0), 1, generator=random)
        text = torch.cat([text, drawn.to(torch.uint8)[None]], dim=1)
    return bytes(text[0].tolist())


class Pixels(nn.Module):
    """Grey images as floats: (records, height, width) uint8 -> (records, 1, height, width).

    Args:
        mean: of the data set's pixels as fractions of 255.
        deviation: their standard deviation.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.mean = mean
        self.deviation = deviation

    def forward(self, images: Tensor) -> Tensor:
        """Scales to mean 0 and deviation 1."""
        return (images.unsqueeze(1).float() / 255 - self.mean) / self.deviation


def convolutional_net(*, channels: int = 16, num_classes: int = 10) -> nn.Sequential:
    """A small net for 28 x 28 grey images: (records, 28, 28) uint8 -> (records, classes) logits."""
    return nn.Sequential(
        Pixels(mean=0.2860, deviation=0.3530),
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )
