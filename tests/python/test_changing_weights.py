"""Weights that change between a forward and its backward pass: what trains with PyTorch's autocast still trains."""

import pytest
import torch
from conftest import stock
from torch import nn

TOLERANCE = 2.0**-5  # of a gradient's norm: four layers and an update, each rounded to 2^-8 in bf16


@pytest.fixture(autouse=True)
def pinned(kernels):
    """Pins kernels that every CPU has. The fastest ones might be PyTorch's, with its casts."""
    kernels.pin("generic")
    yield
    kernels.pin("measured")


def step_of_the_optimizer(model, optimizer):
    optimizer.step()


def step_through_data(model, optimizer):
    """Steps like older programs, and like torch::optim::SGD in C++: autograd's versions do not change."""
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)


def clipped_through_data(model, optimizer):
    for p in model.parameters():
        p.data.clamp_(-0.05, 0.05)


def alternate(dtype, update, make_optimizer):
    """Runs two rounds of an adversarial pair. The critic steps between the generator's forward and backward pass."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 32))
    critic = nn.Sequential(nn.Linear(32, 40), nn.GELU(), nn.Linear(40, 24))
    optimizers = [make_optimizer(model.parameters()) for model in (generator, critic)]
    noise, real = torch.randn(32, 24), torch.randn(32, 32)
    gradients = []
    for _ in range(2):
        with torch.autocast("cpu", dtype=dtype):
            fake = generator(noise)
            score = critic(fake)
            difference = critic(fake.detach()).float().square().mean() - critic(real).float().square().mean()
        for model, optimizer, loss in ((critic, optimizers[1], difference), (generator, optimizers[0], -score.mean())):
            optimizer.zero_grad()
            loss.float().backward()
            gradients += [p.grad.clone() for p in model.parameters()]
            update(model, optimizer)
    return gradients


MAKE = {"SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("update", [step_of_the_optimizer, step_through_data, clipped_through_data],
                         ids=lambda update: update.__name__)
@pytest.mark.parametrize("optimizer", MAKE)
def test_an_adversarial_pair_trains_as_with_pytorch(optimizer, update, dtype):
    ours = alternate(dtype, update, MAKE[optimizer])
    with stock():
        theirs = alternate(dtype, update, MAKE[optimizer])
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= TOLERANCE * b.norm() + 1e-6


def product(weight, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = nn.functional.linear(x, weight)
    assert "MixedProduct" in y.grad_fn.name()
    return y


def changed_in_place(weight):
    with torch.no_grad():
        weight.mul_(2)


@pytest.mark.parametrize("change", [changed_in_place, lambda w: w.data.mul_(2), lambda w: w.data[3, 5].add_(1),
                                    lambda w: setattr(w, "data", torch.ones_like(w))],
                         ids=["in place", "through data", "one element", "replaced"])
def test_a_mixed_product_refuses_a_change(kernels, change):
    assert kernels.mixed_products(True) is False
    x, weight = torch.randn(16, 24, requires_grad=True), nn.Parameter(torch.randn(16, 24))
    y = product(weight, x)
    change(weight)
    with pytest.raises(RuntimeError, match=r"changed after the forward pass .*mixed_products\(False\)"):
        y.sum().backward()


def test_hooks_on_saved_tensors_may_save_less_than_everything(kernels):
    """Hooks may return another tensor: only changes that they did not make are detected."""
    kernels.mixed_products(True)
    x, weight = torch.randn(16, 24, requires_grad=True), nn.Parameter(torch.randn(16, 24))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t.dtype, t.detach().bfloat16()),
                                                  lambda saved: saved[1].to(saved[0])):
        y = product(weight, x)
    y.sum().backward()
    assert torch.equal(x.grad, (torch.ones(16, 16).bfloat16() @ weight.detach().bfloat16()).float())


@pytest.mark.parametrize("wrong", [lambda t: t[:3], lambda t: t[:, :3], lambda t: t.double()],
                         ids=["rows", "columns", "dtype"])
def test_hooks_that_give_back_another_shape_read_no_foreign_memory(kernels, wrong):
    kernels.mixed_products(True)
    x, weight = torch.randn(16, 24, requires_grad=True), nn.Parameter(torch.randn(16, 24))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, wrong):
        y = product(weight, x)
    try:
        y.sum().backward()
    except RuntimeError:
        return
    assert x.grad.shape == x.shape and weight.grad.shape == weight.shape


def test_no_copy_is_made_only_where_that_was_asked_for(mixed):
    """Checked by the graph: a cast is a separate operation between the product and the weight."""
    weight = nn.Parameter(torch.randn(20, 40))
    with torch.autocast("cpu", dtype=torch.float16):
        y = nn.functional.linear(torch.randn(30, 40), weight)
    assert ("MixedProduct" in y.grad_fn.name()) == mixed
