"""Attention and its gradients, over many draws: on average no further from float64 than PyTorch's own kernels."""

import pytest
import torch
import torch.nn.functional as F
from conftest import HALF_PLACE, stock

DRAWS = 40
MEAN = 1.1  # over that many draws, the ratio's own spread is below 0.05


def attend(inputs, start, dtype, is_causal):
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    result = F.scaled_dot_product_attention(*inputs, is_causal=is_causal)
    return [x.double() for x in (result.detach(), *torch.autograd.grad(result, inputs, start.to(dtype)))]


@pytest.mark.products
@pytest.mark.parametrize("dtype", HALF_PLACE, ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("largest", [1, 9])
def test_errors_are_no_larger_in_the_mean(dtype, is_causal, largest):
    """Inputs up to 1 give a flat softmax; inputs up to 9 give one that is nearly 0 or 1, whose gradients cancel."""
    squares = torch.zeros(2, 4, dtype=torch.double)
    for seed in range(DRAWS):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return ((torch.rand(shape, generator=generator) * 2 - 1) * largest).bfloat16().double()

        inputs = [draw(2, 4, 7, 16), draw(2, 4, 12, 16), draw(2, 4, 12, 16)]
        start = torch.randn(2, 4, 7, 16, generator=generator).bfloat16().double()
        ours = attend(inputs, start, dtype, is_causal)
        with stock():
            theirs = attend(inputs, start, dtype, is_causal)
        exact = attend(inputs, start, torch.float64, is_causal)
        for i, results in enumerate(zip(ours, theirs, exact)):
            for j in range(2):
                squares[j, i] += (results[j] - results[2]).square().mean()
    ratios = (squares[0] / squares[1]).sqrt()
    assert (ratios <= MEAN).all(), f"result and three gradients: {ratios.tolist()} times PyTorch's"
