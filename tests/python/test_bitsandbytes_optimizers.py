"""bitsandbytes's 8-bit optimizers on the CPU with these kernels: nearly the same weights, and no change of code.

bitsandbytes's CPU kernels store a state that is a tiny part of its block's largest, or 0, as about 2e-5 of it. The
gradients here have no zeros, except where a test is about them.
"""

import copy

import pytest
import torch
from conftest import own

bnb = pytest.importorskip("bitsandbytes")

pytestmark = pytest.mark.usefixtures("replaced")
STEPS = 10
CASES = {
    "Adam8bit": {"lr": 1e-3},
    "AdamW8bit": {"lr": 1e-3, "weight_decay": 0.01},
    "Lion8bit": {"lr": 1e-3, "weight_decay": 0.1},
    "SGD8bit": {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.01},
    "RMSprop8bit": {"lr": 1e-3},
    "Adagrad8bit": {"lr": 1e-2},
    "LAMB8bit": {"lr": 1e-3},
    "LARS8bit": {"lr": 1e-2, "momentum": 0.9},
    "AdEMAMix8bit": {"lr": 1e-3},
}
ADAM = {"beta1": 0.9, "beta2": 0.999, "beta3": 0.0, "alpha": 0.0, "eps": 1e-8, "step": 1, "lr": 1e-3}


def trained(name, dtype, gradients, start):
    weight = start.clone().to(dtype).requires_grad_()
    optimizer = getattr(bnb.optim, name)([weight], **CASES[name])
    for gradient in gradients:
        weight.grad = gradient.to(dtype)
        optimizer.step()
    return weight.detach(), optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_steps_are_near_bitsandbytes_own(replaced, name, dtype):
    start, gradients = torch.randn(70, 90), [torch.randn(70, 90) + 1e-4 for _ in range(STEPS)]
    ours, _ = trained(name, dtype, gradients, start)
    theirs, _ = own(replaced, lambda: trained(name, dtype, gradients, start))
    difference = (ours.float() - theirs.float()).abs()
    # A state near the middle between two codes may get either. A rounded weight may be a step of its dtype away.
    lr, step = CASES[name]["lr"], {torch.float32: 0, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
    moved = (ours.float() - start.to(dtype).float()).abs().mean()
    assert moved > 0.3 * lr, "a run in which nothing moves proves little"
    # An element of Lion whose direction is near 0 may go the other way.
    least = 1e-6 if name == "Lion8bit" else 0.1 * lr
    assert (difference > least + step * theirs.float().abs()).float().mean() < 0.02
    assert difference.mean() <= 1e-2 * lr + step * theirs.float().abs().mean()


def test_a_run_goes_on_with_either_kernels(replaced):
    """The states have bitsandbytes's layout, so a checkpoint of one is a checkpoint of the other."""
    start, gradients = torch.randn(5000), [torch.randn(5000) + 1e-4 for _ in range(STEPS)]
    whole, _ = trained("Adam8bit", torch.float32, gradients, start)
    weight, optimizer = trained("Adam8bit", torch.float32, gradients[:5], start)
    state = copy.deepcopy(optimizer.state_dict())
    for on in (True, False):
        again = weight.clone().requires_grad_()
        resumed = bnb.optim.Adam8bit([again], lr=1e-3)
        resumed.load_state_dict(copy.deepcopy(state))
        replaced.bitsandbytes_kernels(on)
        for gradient in gradients[5:]:
            again.grad = gradient.clone()
            resumed.step()
        replaced.bitsandbytes_kernels(True)
        if on:
            assert torch.equal(again, whole)
        else:
            assert (again - whole).abs().mean() < 1e-5


@pytest.mark.parametrize("name", ["Adam8bit", "Lion8bit", "SGD8bit", "RMSprop8bit", "Adagrad8bit"])
def test_weights_without_gradient_stay(replaced, name):
    """bitsandbytes's own CPU kernels let them drift."""
    options = {**CASES[name], "weight_decay": 0.0}
    weight = torch.randn(8192).requires_grad_()
    start, has_gradient = weight.detach().clone(), torch.arange(8192) % 3 == 0
    optimizer = getattr(bnb.optim, name)([weight], **options)
    for _ in range(STEPS):
        weight.grad = torch.randn(8192) * has_gradient
        optimizer.step()
    assert torch.equal(weight[~has_gradient], start[~has_gradient])
    assert not torch.equal(weight[has_gradient], start[has_gradient])


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_that_is_not_finite_stays_at_its_element(replaced, name):
    odd, start = torch.tensor([7, 300]), torch.randn(5000)
    clean = [torch.randn(5000).index_fill(0, odd, 0) for _ in range(3)]
    gradients = [clean[0], clean[1].index_copy(0, odd, torch.tensor([float("nan"), float("-inf")])), clean[2]]
    before, after = (trained(name, torch.float32, gradients[:count], start)[0] for count in (1, 2))
    assert torch.equal(after[odd], before[odd]) and not torch.equal(after, before)
    ours, expected = (trained(name, torch.float32, given, start)[0] for given in (gradients, clean))
    assert ours.isfinite().all()
    others = torch.ones(5000, dtype=torch.bool).index_fill(0, odd, False)
    assert torch.equal(ours[others], expected[others])


def state_of(count):
    blocks, create = -(count // -256), bnb.functional.create_dynamic_map
    return {"state1": torch.zeros(count, dtype=torch.uint8), "state2": torch.zeros(count, dtype=torch.uint8),
            "qmap1": create(signed=True), "qmap2": create(signed=False), "absmax1": torch.zeros(blocks),
            "absmax2": torch.zeros(blocks), "weight_decay": 0.0, "gnorm_scale": 1.0}


def call(name, g, p, **arguments):
    torch.ops.bitsandbytes.optimizer_update_8bit_blockwise(name, g, p, **{**ADAM, **state_of(p.numel()), **arguments})


def test_the_scale_of_the_gradient_and_tensors_with_gaps(replaced):
    p, g = torch.randn(300, 20), torch.randn(300, 20)
    expected, scaled, gaps, kept = p.clone(), p.clone(), torch.randn(300, 40)[:, ::2].copy_(p), g.clone()
    call("adam", g * 0.5, expected)
    call("adam", g, scaled, gnorm_scale=0.5)
    call("adam", (g * 0.5).t().contiguous().t(), gaps)
    assert torch.equal(scaled, expected) and torch.equal(gaps, expected) and torch.equal(g, kept)
    wide = p.double()
    call("adam", g.double() * 0.5, wide)
    assert torch.equal(wide, expected.double())


def test_wrong_calls_raise_and_change_nothing(replaced):
    p = torch.randn(1000)
    before = p.clone()
    for match, name, arguments in [
        ("no optimizer 'adamx'", "adamx", {}),
        ("needs state2", "adam", {"state2": None}),
        ("need as many bytes", "adam", {"state1": torch.zeros(999, dtype=torch.uint8)}),
        ("need as many bytes", "adam", {"absmax2": torch.zeros(3)}),
        ("dynamic map has", "adam", {"qmap1": torch.linspace(-1, 1, 256)}),
        ("has to have 256", "adam", {"qmap2": torch.ones(16)}),
        ("two averages", "ademamix", {}),
    ]:
        with pytest.raises(ValueError, match=match):
            call(name, torch.ones(1000), p, **arguments)
    with pytest.raises(ValueError, match="the gradient has 999"):
        call("adam", torch.ones(999), p)
    assert torch.equal(p, before)
