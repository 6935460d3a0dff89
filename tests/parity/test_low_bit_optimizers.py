"""Compares the 4-bit optimizers with torchao's, and Muon with torch.optim's, on the CPU.

torchao compiles its step. Here it runs as it is, operation by operation, because the compiler would fuse products and
sums in its own way.
"""

import json
import subprocess

import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file, save_file
from torchao import optim as torchao_optim

STEPS = 10


def make_tensors(shapes, seed=5):
    generator = torch.Generator().manual_seed(seed)
    tensors = {str(i): torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)}
    for step in range(STEPS):
        for i, shape in enumerate(shapes):
            tensors[f"{step}.{i}"] = torch.randn(shape, generator=generator)
    return tensors


@pytest.fixture
def run_ours(tmp_path):
    def run(job, tensors, steps):
        """Returns the weights, and the tensors of the state: {"<weight>.<name>": tensor}."""
        save_file(tensors, tmp_path / "tensors.safetensors")
        job = {"threads": 2, "from": 0, "to": steps, "tensors": str(tmp_path / "tensors.safetensors"),
               "output": str(tmp_path / "output.safetensors"), "output_state": str(tmp_path / "state.json")} | job
        (tmp_path / "job.json").write_text(json.dumps(job))
        subprocess.run([BUILD / "optimizer_8bit_runner", tmp_path / "job.json"], check=True)
        result = load_file(job["output"])
        weights = [result[str(i)] for i in range(sum("." not in key for key in tensors))]
        return weights, {key: value for key, value in result.items() if "." in key}

    return run


def steps_of(optimizer, weights, tensors, steps):
    for step in range(steps):
        for i, weight in enumerate(weights):
            weight.grad = tensors[f"{step}.{i}"].clone()
        optimizer.step()
    return [weight.detach() for weight in weights]


# The last two have 32-bit states: one is small, the other no multiple of 128.
SHAPES_4BIT = [(64, 80), (4096,), (100,), (4097,)]
CASES_4BIT = {
    "adam4bit": ("Adam4bit", {}),
    "adam4bit with decay": ("Adam4bit", {"weight_decay": 0.1}),
    "adamw4bit": ("AdamW4bit", {"weight_decay": 0.1}),
}


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("case", CASES_4BIT)
def test_4bit_adam_follows_torchao(run_ours, monkeypatch, case, steps):
    monkeypatch.setattr(torch._dynamo.config, "disable", True)
    name, options = CASES_4BIT[case]
    tensors, lr = make_tensors(SHAPES_4BIT), 1e-2
    weights = [tensors[str(i)].clone().requires_grad_() for i in range(len(SHAPES_4BIT))]
    optimizer = getattr(torchao_optim, name)(weights, lr=lr, betas=(0.9, 0.99), **options)
    theirs = steps_of(optimizer, weights, tensors, steps)
    ours, state = run_ours({"optimizer": case.split()[0], "lr": lr, "beta1": 0.9, "beta2": 0.99, **options}, tensors,
                           steps)
    for i, weight in enumerate(weights):
        difference = (ours[i] - theirs[i]).abs()
        has_codes = i < 2
        if steps == 1 or not has_codes:
            assert difference.max() <= 1e-6 * steps
        else:
            # A number near the middle of two values may get either, and 4-bit values are far apart.
            assert difference.mean() <= 0.01 * lr
            assert (difference > 0.5 * lr).float().mean() < 0.01
        for ours_name, their_name in (("1", "exp_avg"), ("2", "exp_avg_sq")):
            moment = optimizer.state[weight][their_name]
            if not has_codes:
                assert torch.allclose(state[f"{i}.state{ours_name}"], moment, rtol=1e-5, atol=1e-7)
                continue
            codes, scale = state[f"{i}.state{ours_name}"], state[f"{i}.absmax{ours_name}"]
            assert codes.shape == moment.codes.shape and scale.shape == moment.scale.shape
            assert (codes != moment.codes).float().mean() <= (0.001 if steps == 1 else 0.02)
            assert torch.allclose(scale, moment.scale, rtol=1e-6 if steps == 1 else 0.05)
        assert (ours[i] - tensors[str(i)]).abs().mean() > 0.5 * lr, "a run in which nothing moves proves little"


def test_4bit_values_are_torchaos():
    from torchao.optim.subclass_4bit import OptimState4bit

    signed = [-0.8875, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055, 0, 0.0055, 0.0325, 0.0775, 0.2125, 0.4375,
              0.6625, 0.8875, 1]
    assert torch.allclose(OptimState4bit.zeros((128,), True).qmap, torch.tensor(signed), rtol=1e-7)
    assert torch.equal(OptimState4bit.zeros((128,), False).qmap, torch.arange(1, 17) / 16)


CASES_MUON = {
    "default": {"lr": 0.02},
    "without nesterov": {"lr": 0.02, "nesterov": False, "momentum": 0.5, "weight_decay": 0.0},
    "match_rms_adamw": {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw"},
    "original, three steps": {"lr": 0.02, "adjust_lr_fn": "original", "ns_steps": 3},
    "no momentum": {"lr": 0.02, "momentum": 0.0},
}
SHAPES_MUON = [(48, 48), (96, 32), (32, 96), (1, 7)]


@pytest.mark.parametrize("case", CASES_MUON)
def test_muon_follows_torch(run_ours, case):
    options, tensors = CASES_MUON[case], make_tensors(SHAPES_MUON)
    weights = [tensors[str(i)].clone().requires_grad_() for i in range(len(SHAPES_MUON))]
    optimizer = torch.optim.Muon(weights, **options)
    theirs = steps_of(optimizer, weights, tensors, STEPS)
    ours, state = run_ours({"muon_options": options}, tensors, STEPS)
    for i, shape in enumerate(SHAPES_MUON):
        # The momentum does not depend on the orthogonal matrix.
        momentum = optimizer.state[weights[i]]["momentum_buffer"]
        assert torch.allclose(state[f"{i}.momentum_buffer"], momentum, rtol=0, atol=1e-6)
        # The products are in bfloat16, and each kernel adds in another order: about 2^-8 of each element, ten times.
        moved = (theirs[i] - tensors[str(i)]).abs().mean()
        assert (ours[i] - theirs[i]).abs().mean() <= 0.01 * moved
        assert (ours[i] - theirs[i]).abs().max() <= 0.1 * (theirs[i] - tensors[str(i)]).abs().max()
        assert moved > 1e-3


def test_muons_defaults_and_errors_are_torchs():
    group = torch.optim.Muon([torch.zeros(2, 2)]).param_groups[0]
    assert (group["lr"], group["weight_decay"], group["momentum"], group["nesterov"]) == (1e-3, 0.1, 0.95, True)
    assert (group["ns_coefficients"], group["eps"], group["ns_steps"]) == ((3.4445, -4.7750, 2.0315), 1e-7, 5)
    with pytest.raises(ValueError, match="only supports 2D parameters"):
        torch.optim.Muon([torch.zeros(2)])
