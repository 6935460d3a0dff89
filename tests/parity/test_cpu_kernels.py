"""Training with our 16-bit products follows PyTorch's: equal skipped steps, and losses that differ by rounding only.

Both round each product once to 16 bits from a float32 sum, in different orders. Single results differ by one unit in
the last place (2^-8 in bf16, 2^-11 in fp16), and the losses, which are means over many results, by less.
"""

import pytest
import reference
import torch


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("model", ["mlp", "gpt-tiny"])
def test_losses_follow_pytorchs(make_job, run_mantissa, monkeypatch, model, precision):
    monkeypatch.setenv("MANTISSA_CPU_KERNELS", "1")
    job = make_job(model=model, precision=precision, optimizer="sgd", lr=0.02, batch_size=2 if model == "gpt-tiny" else 16,
                   batches=6 if model == "gpt-tiny" else 60)
    ours, theirs = run_mantissa(job), reference.run(job)
    assert ours["skipped"].tolist() == theirs["skipped"].tolist()
    torch.testing.assert_close(ours["loss"].float(), theirs["loss"].float(), rtol=2**-6, atol=2**-8)
