"""Models of TorchScript files: training from C++ gives the bits of a plain PyTorch loop over the model that was scripted."""

import pytest
import reference
import torch
from conftest import assert_same


class Net(torch.nn.Module):
    """Layers that a mode treats in its own way: convolution, batch norm, linear, and a parameter of the model itself."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8 * 64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.scale = torch.nn.Parameter(torch.full((10,), 1.5))

    def forward(self, x):
        return self.layers(torch.relu(self.norm(self.conv(x))).flatten(1)) * self.scale


def run_script(job, run_mantissa, model, path):
    torch.jit.script(model).save(path)
    return run_mantissa({**job, "model": f"jit:{path}"})


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "16-mixed"])
def test_a_scripted_model_has_the_bits_of_the_model(make_job, run_mantissa, tmp_path, precision):
    job = make_job(model="convnet", precision=precision, optimizer="adamw", lr=1e-3, batches=60, gradient_clip_val=1.0)
    peer = reference.make_model(job)
    assert_same(run_script(job, run_mantissa, peer, tmp_path / "model.pt"), reference.run(job))


@pytest.mark.parametrize("trace", [False, True])
def test_a_model_of_ones_own(make_job, run_mantissa, tmp_path, monkeypatch, trace):
    monkeypatch.setattr(reference, "make_model", lambda job: Net())
    # A trace calls an inner function of convolution, which other kernels compute in 16 bits.
    job = make_job(model="convnet", precision="32-true" if trace else "bf16-mixed", optimizer="adamw", lr=1e-3, batches=60)
    path = tmp_path / "model.pt"
    if trace:
        torch.jit.trace(Net().train(), torch.rand(2, 1, 8, 8)).save(path)
        ours = run_mantissa({**job, "model": f"jit:{path}"})
    else:
        ours = run_script(job, run_mantissa, Net(), path)
    theirs = reference.run(job)
    assert_same(ours, theirs)
    assert theirs["loss"][-20:].mean() < theirs["loss"][:20].mean()
    # The weights have the names of Python's state_dict().
    assert {name.removeprefix("weights.") for name in ours if name.startswith("weights.")} == set(Net().state_dict())
