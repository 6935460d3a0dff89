"""Python twins of mantissa/models: the same names, order, sizes and operations. Weights saved by either side load into
the other, the same seed gives the same weights, and the same weights give the same bits."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self, in_features, classes, hidden=(128, 128)):
        super().__init__()
        widths = [in_features, *hidden, classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, images):
        x = images.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class Convnet(nn.Module):
    def __init__(self, channels, height, width, classes, first=16, second=32, hidden=64):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.hidden = nn.Linear(second * (height // 2) * (width // 2), hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, images):
        x = F.relu(self.conv1(images))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2).flatten(1)
        return self.head(F.relu(self.hidden(x)))


def _conv(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.has_shortcut = stride != 1 or inputs != outputs
        if self.has_shortcut:
            self.shortcut_conv = _conv(inputs, outputs, 1, stride)
            self.shortcut_norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        shortcut = self.shortcut_norm(self.shortcut_conv(x)) if self.has_shortcut else x
        return F.relu(y + shortcut)


class Resnet(nn.Module):
    def __init__(self, channels, classes, widths=(32, 64, 128)):
        super().__init__()
        self.stem_conv = _conv(channels, widths[0], 3, 1)
        self.stem_norm = nn.BatchNorm2d(widths[0])
        self.blocks = nn.ModuleList()
        inputs = widths[0]
        for outputs in widths:
            self.blocks.append(BasicBlock(inputs, outputs, 2 if len(self.blocks) else 1))
            inputs = outputs
        self.head = nn.Linear(inputs, classes)

    def forward(self, images):
        x = F.relu(self.stem_norm(self.stem_conv(images)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class GptBlock(nn.Module):
    is_causal = True

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.projection(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers=4, width=256, heads=4, context=128, vocabulary=256):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        residual_std = 0.02 / math.sqrt(2.0 * layers)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    residual = name.endswith(("projection.weight", "contract.weight"))
                    parameter.normal_(0.0, residual_std if residual else 0.02)
                elif name.endswith("bias"):
                    parameter.zero_()

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_llama(vocabulary, context):
    """Returns the model of transformers. It returns its logits."""
    import transformers  # here, because most users of this file do without it

    class Llama(transformers.LlamaForCausalLM):
        def forward(self, tokens):
            return super().forward(tokens, use_cache=False).logits

    return Llama(transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=context, attn_implementation="sdpa"))


def make_model(name, channels=1, height=8, width=8, classes=10, vocabulary=256, context=128):
    """The twin of mantissa::make_model."""
    if name == "mlp":
        return Mlp(channels * height * width, classes)
    if name == "convnet":
        return Convnet(channels, height, width, classes)
    if name == "resnet-tiny":
        return Resnet(channels, classes)
    if name == "gpt-tiny":
        return Gpt(context=context, vocabulary=vocabulary)
    if name == "llama-tiny":
        return make_llama(vocabulary, context)
    raise ValueError(f"make_model: no model is called {name!r} (models: mlp, convnet, resnet-tiny, gpt-tiny, llama-tiny)")
