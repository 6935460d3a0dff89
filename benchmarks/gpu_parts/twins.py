"""Python twins of benchmarks/vision_models.h, like those of mantissa/models in tests/parity/models.py."""

import models
import torch
import torch.nn.functional as F
from models import _conv
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.conv1 = _conv(inputs, width, 1, 1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1, 1)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.has_shortcut = stride != 1 or inputs != outputs
        if self.has_shortcut:
            self.shortcut_conv = _conv(inputs, outputs, 1, stride)
            self.shortcut_norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        shortcut = self.shortcut_norm(self.shortcut_conv(x)) if self.has_shortcut else x
        return F.relu(y + shortcut)


class BottleneckResnet(nn.Module):
    def __init__(self, blocks=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        self.stem_conv = _conv(3, width, 7, 2)
        self.stem_norm = nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList()
        inputs = width
        for count in blocks:
            for i in range(count):
                self.blocks.append(Bottleneck(inputs, width, 2 if i == 0 and len(self.blocks) else 1))
                inputs = 4 * width
            width *= 2
        self.head = nn.Linear(inputs, classes)

    def forward(self, images):
        x = F.relu(self.stem_norm(self.stem_conv(images)))
        x = F.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class VitBlock(models.GptBlock):
    """Like its base class, but without a mask: every position attends to all positions."""

    is_causal = False


class Vit(nn.Module):
    def __init__(self, layers=24, width=1024, heads=16, image=224, patch=16, classes=1000):
        super().__init__()
        side = image // patch
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, side * side + 1, width))
        self.blocks = nn.ModuleList(VitBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


KINDS = {"gpt": models.Gpt, "resnet": BottleneckResnet, "vit": Vit}


def make_model(spec):
    """Makes the model of a job: {"kind": "gpt", "layers": 12, ...}. The other keys are its arguments."""
    sizes = dict(spec)
    return KINDS[sizes.pop("kind")](**sizes)
