"""Tests of `pip install .`: the wheel, and the module that it installs."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASE = torch.__version__.split("+")[0]


# On one worker, because otherwise each worker would build a wheel.
pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what pip installed from a wheel that it built."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    wheels = list(folder.glob("*.whl"))
    assert [wheel.name.split("-")[2:4] for wheel in wheels] == [["py3", "none"]] and "any" not in wheels[0].name
    subprocess.run([*pip, "install", "--no-index", "--no-deps", "--target", folder / "site", *wheels], check=True)
    return folder / "site"


def run_python(installed, code, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MANTISSA_")}
    return subprocess.run([sys.executable, "-c", code], env=kept | {"PYTHONPATH": str(installed)} | environment,
                          capture_output=True, text=True)


def test_importing_switches_on(installed):
    done = run_python(installed, """
import mantissa_kernels as kernels, pathlib, sys, torch
assert pathlib.Path(kernels.__file__).with_name("py.typed").exists()
assert kernels.enabled() and kernels.tier() in ("generic", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_bf16")
a = torch.randn(40, 40).half()
ours = a @ a
torch.testing.assert_close(ours.double(), a.double() @ a.double(), rtol=2**-10, atol=2**-10)
with kernels.switched(False):
    assert not kernels.enabled()
    theirs = a @ a
    with kernels.switched(True):
        assert kernels.enabled() and torch.equal(a @ a, ours)
    assert not kernels.enabled() and torch.equal(a @ a, theirs)
assert kernels.enabled()
try:
    with kernels.switched(False):
        raise KeyError
except KeyError:
    assert kernels.enabled()
kernels.disable()
assert not kernels.enabled()
with kernels.switched(True):
    assert kernels.enabled()
assert not kernels.enabled() and kernels.enable()
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_environment_keeps_them_off(installed):
    done = run_python(installed, """
import mantissa_kernels as kernels
assert not kernels.enabled() and not kernels.enable()
""", MANTISSA_CPU_KERNELS="0")
    assert (done.returncode, done.stderr) == (0, "")


def test_bitsandbytes_keeps_its_layout_while_the_kernels_are_on(installed):
    pytest.importorskip("bitsandbytes")
    done = run_python(installed, """
import bitsandbytes, mantissa_kernels as kernels, torch
assert kernels.bitsandbytes_kernels(True) is False and kernels.bitsandbytes_kernels(True) is True
layer = bitsandbytes.nn.Linear4bit(128, 64, compute_dtype=torch.float32).to("cpu").eval()
packs = layer.support_avx512bf16_for_cpu
layer.support_avx512bf16_for_cpu = True  # as on such a CPU
x = torch.randn(3, 128)
expected = x @ bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).t() + layer.bias
for _ in range(2):
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-4)
    assert not getattr(layer.weight.quant_state, "packing_format_for_cpu", False)
assert kernels.bitsandbytes_kernels(False) is True and kernels.bitsandbytes_kernels(False) is False
if packs:
    layer(x)
    assert layer.weight.quant_state.packing_format_for_cpu
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("before", "messages"), [
    ("import torch; torch.__version__ = '9.9.1+cpu'", [f"built with PyTorch {RELEASE}", "9.9.1+cpu is installed",
                                                       f"pip install torch=={RELEASE}"]),
    ("import sys; sys.modules['torch'] = None", ["PyTorch is not installed", f"pip install torch=={RELEASE}"])])
def test_the_wrong_pytorch_or_none_is_an_error_that_says_what_to_do(installed, before, messages):
    done = run_python(installed, before + "\nimport mantissa_kernels")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: mantissa_kernels: ") and all(message in last for message in messages), last
