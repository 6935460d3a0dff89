"""Exchanges files in both directions: we read what PyTorch's safetensors writes, and the reverse, in every mode."""

import json
import subprocess

import models
import pytest
import torch
from conftest import BUILD
from safetensors import safe_open
from safetensors.torch import load_file, save_file

DTYPES = {"32-true": torch.float32, "64-true": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16,
          "16-mixed": torch.float32, "bf16-mixed": torch.float32}


def fit(*arguments, cwd):
    return subprocess.run([BUILD / "mantissa", "fit", "--device", "cpu", "--quiet", *arguments], cwd=cwd,
                          capture_output=True, text=True)


@pytest.mark.parametrize("precision", DTYPES)
def test_python_reads_the_trained_weights(tmp_path, precision):
    done = fit("--precision", precision, "--max-steps", "3", "--output", "run", "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert {value.dtype for value in weights.values()} == {DTYPES[precision]}
    models.make_model("convnet").load_state_dict(weights)
    with safe_open(tmp_path / "run" / "weights.safetensors", "pt") as file:
        assert file.metadata()["precision"] == precision
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["precision"] == precision and result["steps"] == 3


def test_weights_from_python_are_where_training_starts(tmp_path):
    model = models.make_model("convnet")
    save_file(model.state_dict(), tmp_path / "start.safetensors")
    done = fit("--precision", "32-true", "--weights", "start.safetensors", "--lr", "0", "--weight-decay", "0",
               "--max-steps", "2", "--output", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value), name
