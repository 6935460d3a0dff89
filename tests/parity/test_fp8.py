"""Casts to 8 and 4 bits and the scales of the recipes against torch's float8 dtypes and ml_dtypes, live."""

import subprocess

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file, save_file

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = {"e4m3": (E4M3, ml_dtypes.float8_e4m3fn), "e5m2": (E5M2, ml_dtypes.float8_e5m2)}


@pytest.fixture
def run(tmp_path):
    def call(x):
        save_file({"x": x.contiguous()}, tmp_path / "in.safetensors")
        subprocess.run([BUILD / "fp8_runner", tmp_path / "in.safetensors", tmp_path / "out.safetensors"], check=True)
        return load_file(tmp_path / "out.safetensors")

    return call


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def every_value(dtype):
    """All values of a 16-bit dtype; for float32 a million random bit patterns and a million of training's magnitudes."""
    if dtype == torch.float32:
        bits = torch.randint(-2**31, 2**31, [1_000_000], dtype=torch.int32).view(dtype)
        return torch.cat([bits, torch.randn(1_000_000) * torch.randn(1_000_000).mul(5).exp2()])
    return torch.arange(-2**15, 2**15, dtype=torch.int16).view(dtype)


def matrix():
    return torch.randn(256, 384) * torch.randn(256, 1).mul(3).exp2()


def with_ml_dtypes(x, dtype):
    """The bytes of ml_dtypes' cast of a float32 tensor, or its codes of 4 bits."""
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(x.float().numpy().astype(dtype).view(np.uint8))


def amax_of_blocks(x, rows, cols):
    return x.abs().view(x.shape[0] // rows, rows, x.shape[1] // cols, cols).amax((1, 3))


def quotient(dividend, divisor):
    """A float32 quotient: a Python number divided by a tensor is multiplied by the tensor's reciprocal."""
    return torch.tensor(dividend, dtype=torch.float32) / divisor


def spread(scales, rows, cols):
    return scales.repeat_interleave(rows, 0).repeat_interleave(cols, 1)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_casts_equal_torch_and_ml_dtypes_after_saturation(run, dtype, name):
    fp8, peer = FORMATS[name]
    x = every_value(dtype)
    numbers = ~x.isnan()
    largest = torch.finfo(fp8).max
    ours, saturated = run(x)[name], x.float().clamp(-largest, largest)
    assert torch.equal(ours[numbers], saturated.to(fp8).view(torch.uint8)[numbers])
    assert torch.equal(ours[numbers], with_ml_dtypes(saturated, peer)[numbers])
    assert ours[~numbers].view(fp8).float().isnan().all() and len(ours[~numbers])


def test_current_scaling(run):
    x = matrix()
    ours = run(x)
    scale = quotient(448, x.abs().max())
    assert torch.equal(ours["current"], (x * scale).to(E4M3).view(torch.uint8))
    assert torch.equal(ours["current.scales"], 1 / scale)
    assert torch.equal(ours["current.restored"], (x * scale).to(E4M3).float() * (1 / scale))


@pytest.mark.parametrize("rows", [1, 128])
def test_blocks_of_128(run, rows):
    x = matrix()
    ours, name = run(x), f"{rows}x128"
    scale = quotient(448, amax_of_blocks(x, rows, 128))
    scale = (scale.view(torch.int32) & -2**23).view(torch.float32)
    codes = (x * spread(scale, rows, 128)).to(E4M3)
    assert torch.equal(ours[name + ".scales"], 1 / scale)
    assert torch.equal(ours[name], codes.view(torch.uint8))
    assert torch.equal(ours[name + ".restored"], codes.float() * spread(1 / scale, rows, 128))


def test_mxfp8_with_the_exponents_of_ml_dtypes(run):
    x = matrix()
    ours = run(x)
    wanted = amax_of_blocks(x, 1, 32) * (torch.tensor(1.0) / 448)
    # ml_dtypes rounds an exponent to nearest; of a power of two it is exact.
    power = torch.exp2(torch.ceil(torch.log2(wanted.double()))).float()
    exponents = with_ml_dtypes(power, ml_dtypes.float8_e8m0fnu)
    codes = with_ml_dtypes(x / spread(power, 1, 32), ml_dtypes.float8_e4m3fn)
    assert torch.equal(ours["mxfp8.scales"], exponents)
    assert torch.equal(ours["mxfp8"], codes)
    restored_power = torch.from_numpy(exponents.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    assert torch.equal(ours["mxfp8.restored"], codes.view(E4M3).float() * spread(restored_power, 1, 32))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_2d"])
def test_nvfp4_with_the_codes_of_ml_dtypes(run, name):
    x, rows = matrix(), 16 if name == "nvfp4_2d" else 1
    ours = run(x)
    scale = quotient(448 * 6, x.abs().max())
    blocks = (amax_of_blocks(x, rows, 16) * (scale / 6)).clamp(max=448).to(E4M3)
    assert torch.equal(ours[name + ".scale"], scale)
    assert torch.equal(ours[name + ".scales"], blocks.view(torch.uint8))
    factors = spread(torch.where(blocks.float() == 0, 0, scale / blocks.float()), rows, 16)
    codes = with_ml_dtypes((x * factors).clamp(-6, 6), ml_dtypes.float4_e2m1fn)
    low, high = ours[name] & 15, ours[name] >> 4
    assert torch.equal(torch.stack([low, high], -1).flatten(1), codes)
    values = torch.from_numpy(codes.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    assert torch.equal(ours[name + ".restored"], values * spread(blocks.float(), rows, 16) / scale)


def test_the_hadamard_transform_keeps_lengths(run):
    x = matrix()
    ours = run(x)["hadamard"]
    torch.testing.assert_close(ours.view(-1, 16).norm(dim=1), x.view(-1, 16).norm(dim=1))
    assert not torch.allclose(ours, x)
