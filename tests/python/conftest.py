import contextlib
import os
import pathlib

import pytest
import torch

BUILD = pathlib.Path(os.environ.get("MANTISSA_BUILD", pathlib.Path(__file__).parents[2] / "build"))
LIBRARY = BUILD / "libmantissa_kernels.so"

HALF_PLACE = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}

torch.ops.load_library(LIBRARY)


@pytest.fixture(autouse=True)
def kernels():
    """Returns torch.ops.mantissa_kernels, switched on whatever the previous test did, without mixed products."""
    if not torch.ops.mantissa_kernels.enable():
        pytest.exit("MANTISSA_CPU_KERNELS=0: nothing to test", 1)
    torch.ops.mantissa_kernels.mixed_products(False)
    return torch.ops.mantissa_kernels


@pytest.fixture(params=[False, True], ids=["copies", "mixed"])
def mixed(request, kernels):
    """Runs the test with and without mixed products of autocast."""
    kernels.mixed_products(request.param)
    yield request.param
    kernels.mixed_products(False)


@pytest.fixture
def replaced(kernels):
    """Runs the test with our kernels in place of bitsandbytes's own."""
    torch.manual_seed(3)
    assert kernels.bitsandbytes_kernels(True) is False
    yield kernels
    assert kernels.bitsandbytes_kernels(False) is True


def own(kernels, call):
    """Returns what bitsandbytes's own kernels return."""
    kernels.bitsandbytes_kernels(False)
    result = call()
    kernels.bitsandbytes_kernels(True)
    return result


@contextlib.contextmanager
def stock():
    """Uses PyTorch's own kernels inside the block."""
    torch.ops.mantissa_kernels.disable()
    try:
        yield
    finally:
        torch.ops.mantissa_kernels.enable()


def sum_error(magnitude, products):
    """Returns E of docs/cpu-kernels-numerics.md: the error of a float32 sum. `magnitude` is the sum of |a||b|."""
    return (products + 8) * 2.0**-24 * magnitude


def allowed_error(exact, sums, dtype):
    """Returns how far one rounding to `dtype`, after an error of `sums`, may lie from `exact`."""
    # Slightly more than half a unit in the last place: next to a power of two, the larger unit of its
    # neighbour counts.
    return sums + (exact.abs() + sums) * HALF_PLACE[dtype] * (1 + 2**-7) + SMALLEST[dtype] / 2
