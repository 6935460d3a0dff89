"""Activation checkpointing: the second forward pass, in backward, must save the same tensors as the first."""

import pytest
import torch
from conftest import stock
from torch import nn
from torch.utils.checkpoint import checkpoint

TOLERANCE = 2.0**-6  # of a gradient's norm: three layers, each rounded to 2^-8 in bf16, 2^-11 in fp16


class Checkpointed(nn.Module):
    """Uses the same layer several times: some of its uses in a region find a copy of the weight, and some do not."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        for _ in range(3):
            x = x + checkpoint(self.layer, x, use_reentrant=self.use_reentrant)
        return x.float().square().mean()


def backward_after_the_region(net, x, dtype):
    with torch.autocast("cpu", dtype=dtype):
        loss = net(x)
    loss.backward()


def backward_inside_the_region(net, x, dtype):
    with torch.autocast("cpu", dtype=dtype):
        net(x).backward()


def two_batches_in_a_region(net, x, dtype):
    with torch.autocast("cpu", dtype=dtype):
        net.layer(x)  # uses without checkpointing
        loss = net(x) + net(2 * x)
    loss.backward()


def gradients(train, use_reentrant, dtype):
    torch.manual_seed(0)
    net, x = Checkpointed(use_reentrant), torch.randn(64, 128, requires_grad=True)
    train(net, x, dtype)
    return [x.grad, *(p.grad for p in net.parameters())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["by hooks", "reentrant"])
@pytest.mark.parametrize("train", [backward_after_the_region, backward_inside_the_region, two_batches_in_a_region],
                         ids=lambda train: train.__name__)
@pytest.mark.usefixtures("mixed")
def test_gradients_follow_pytorchs(train, use_reentrant, dtype):
    ours = gradients(train, use_reentrant, dtype)
    with stock():
        theirs = gradients(train, use_reentrant, dtype)
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= TOLERANCE * b.norm()
