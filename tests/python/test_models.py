"""Whole models through torch.autocast, as Python programs train them: the losses follow those of PyTorch's own kernels.

Both round products once to 16 bits, from sums in different orders: to 2^-8 of them in bf16, 2^-11 in fp16. A loss is a
mean over many, and each of the few steps adds to the difference.
"""

import pytest
import torch
import torch.nn.functional as F
from conftest import stock
from models import Resnet18, Transformer
from torch import nn

STEPS = 6
LEARNING_RATE = {"transformer": 0.1, "resnet18": 0.004}
# The tolerance as a share of the loss's decrease. Rounding turns the gradients of this small ResNet (of 8
# images normalised by their own mean) by a fifth compared with float32's, both PyTorch's and ours: both
# descents are equally correct.
APART = {"transformer": 0.0, "resnet18": 0.25}
TOLERANCE = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-8}


def transformer(generator):
    tokens = torch.randint(0, 64, (4, 25), generator=generator)
    return Transformer(layers=2, width=64, heads=4, vocabulary=64), tokens[:, :-1], tokens[:, 1:]


def resnet18(generator):
    target = torch.randint(0, 10, (8,), generator=generator)
    patterns = torch.randn(10, 3, 1, 1, generator=generator)
    images = patterns[target] + 0.5 * torch.randn(8, 3, 16, 16, generator=generator)
    return Resnet18(classes=10, width=16), images, target


def train(make, dtype):
    """Returns losses, scale and weights of a few steps, with a GradScaler in fp16."""
    torch.manual_seed(0)
    model, data, target = make(torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE[make.__name__])
    # The first scale is too large for both, so that steps are skipped, too.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, enabled=dtype == torch.float16)
    losses = []
    for _ in range(STEPS * (3 if dtype == torch.float16 else 1)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(data).flatten(0, -2).float(), target.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses), scaler.get_scale()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("make", [transformer, resnet18], ids=lambda make: make.__name__)
def test_losses_follow_pytorchs(make, dtype):
    ours, our_scale = train(make, dtype)
    with stock():
        theirs, their_scale = train(make, dtype)
    assert our_scale == their_scale
    allowed = TOLERANCE[dtype] * (1 + theirs) + APART[make.__name__] * (theirs[0] - theirs).abs()
    assert ((ours - theirs).abs() <= allowed).all(), (ours, theirs)
    assert theirs[-1] < 0.9 * theirs[0], "a run that learns nothing proves little"


def gradients(model, images):
    """Returns results and gradients of a model in bf16."""
    model.zero_grad()
    result = model(images)
    result.float().square().mean().backward()
    return [result.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.fixture
def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 20), nn.GELU(),
                          nn.Linear(20, 4)).bfloat16()
    return model, torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.mark.parametrize("how", [
    pytest.param(lambda model, images: torch.jit.trace(model, images), id="trace"),
    pytest.param(lambda model, images: torch.jit.script(model), id="script"),
    pytest.param(lambda model, images: torch.compile(model, backend="eager"), id="compile_eager"),
    pytest.param(lambda model, images: torch.compile(model, backend="aot_eager"), id="compile_aot_eager")])
def test_compiled_models_reach_the_same_kernels(small, how):
    """Equals the model itself bit for bit, and PyTorch's kernels once ours are off, without compiling again."""
    model, images = small
    plain = gradients(model, images)
    compiled = how(model, images)
    for _ in range(3):  # scripted models are specialised for the inputs that they see
        for ours, expected in zip(gradients(compiled, images), plain, strict=True):
            assert torch.equal(ours, expected)
    with stock():
        for theirs, expected in zip(gradients(compiled, images), gradients(model, images), strict=True):
            assert torch.equal(theirs, expected)


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_batch_of_gradients_goes_through_an_autocast_region(dtype):
    """vmap over the backward pass only; the forward pass is not transformed."""
    torch.manual_seed(0)
    layer, x, starts = nn.Linear(6, 5), torch.randn(3, 6, requires_grad=True), torch.randn(4, 3, 5).to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
    leaves = [x, *layer.parameters()]
    batched = torch.autograd.grad(y, leaves, starts, is_grads_batched=True, retain_graph=True)
    for i, start in enumerate(starts):
        for ours, expected in zip(batched, torch.autograd.grad(y, leaves, start, retain_graph=True), strict=True):
            torch.testing.assert_close(ours[i], expected, rtol=2**-6, atol=2**-6)


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors_go_through_an_autocast_region(layout):
    """Nested tensors have symbolic sizes, or none."""
    torch.manual_seed(0)
    layer, rows = nn.Linear(6, 5), [torch.randn(2, 6), torch.randn(3, 6)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nested = layer(torch.nested.nested_tensor(rows, layout=layout))
        plain = layer(torch.cat(rows))
    torch.testing.assert_close(torch.cat(nested.unbind()), plain, rtol=2**-7, atol=2**-7)


def test_a_forward_pass_may_meet_another_kernel_in_its_backward_pass(small):
    """Switching in between is not an error: the gradients have the same formulas."""
    model, images = small
    ours = gradients(model, images)
    result = model(images)
    with stock():
        model.zero_grad()
        result.float().square().mean().backward()
    for parameter, gradient in zip(model.parameters(), ours[1:], strict=True):
        torch.testing.assert_close(parameter.grad.float(), gradient.float(), rtol=2**-5, atol=2**-8)


@pytest.mark.usefixtures("mixed")
def test_a_batch_of_lengths_of_its_own():
    """A nested tensor has no sizes that are numbers."""
    torch.manual_seed(0)
    layer = nn.Linear(40, 20)
    rows = [torch.randn(3, 40), torch.randn(5, 40)]

    def run():
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = layer(torch.nested.nested_tensor(rows, layout=torch.jagged)).values()
        result.float().pow(2).sum().backward()
        return result, layer.weight.grad

    ours = run()
    with stock():
        theirs = run()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.float(), b.float(), rtol=2**-6, atol=2**-6)


def test_after_a_transform_of_functions_weights_are_rounded_in_the_product_again(kernels):
    kernels.mixed_products(True)
    layer, x = nn.Linear(40, 20), torch.randn(30, 40)

    def operation():
        with torch.autocast("cpu", dtype=torch.float16):
            return layer(x).grad_fn.name()

    before = operation()
    assert "MixedProduct" in before
    torch.func.vmap(torch.func.grad(lambda row: layer(row).sum()))(x)
    assert operation() == before
