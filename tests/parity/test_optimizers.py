"""Compares our Adam, AdamW and SGD with torch.optim's single-tensor path on the same CPU: equal gradients, equal bits.

Recorded numbers would not work: libtorch's kernels, and MKL's below them, round differently on different CPUs.
"""

import pytest
import torch
from test_fused_optimizers import CASES, DTYPES, LARGE, STEPS, assert_equal, make_tensors, run_ours, run_python  # noqa: F401

PLAIN = {name: case | {"optimizer": case["optimizer"].removeprefix("fused-")} for name, case in CASES.items()
         if not name.startswith("adagrad")}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_PE07_PE09_bit_for_bit(run_ours, name, dtype):  # noqa: F811
    if name.startswith("adam") and dtype == torch.float16 and PLAIN[name].get("eps", 1e-8) < 2**-24:
        pytest.skip("an epsilon of 1e-8 is 0 in float16, and the weights become NaN on both sides")
    tensors = make_tensors(LARGE, dtype)
    theirs = run_python(PLAIN[name], tensors, [0] * STEPS)
    assert_equal(run_ours(PLAIN[name], tensors, [0] * STEPS), theirs)
    assert not torch.equal(theirs["0"], tensors["0"]), "a run in which nothing moves proves little"
