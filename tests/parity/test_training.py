"""Compares our Trainer with a plain PyTorch loop: equal weights, data and order give equal bits at every step.

Both sides run the same libtorch release with the same number of threads. No operation of these models has another order
of summation in C++ than in Python. The one that had, libtorch's own Linear on three-dimensional input, is not used
(mantissa/models/linear_internal.h).
"""

import pytest
import reference
import torch
from conftest import assert_same

MODELS = ["mlp", "convnet", "resnet-tiny", "gpt-tiny"]
LEARNING_RATE = {"sgd": 0.02, "adamw": 1e-3}


def batch_size(model):
    return 2 if model == "gpt-tiny" else 16


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
@pytest.mark.parametrize("model", MODELS)
def test_PE03_200_steps_bit_for_bit(make_job, run_mantissa, model, precision, optimizer):
    job = make_job(model=model, precision=precision, optimizer=optimizer, lr=LEARNING_RATE[optimizer],
                   batch_size=batch_size(model))
    ours, theirs = run_mantissa(job), reference.run(job)
    assert_same(ours, theirs)
    assert theirs["loss"].dtype == (torch.float64 if precision == "64-true" else torch.float32)
    assert theirs["loss"][-20:].mean() < theirs["loss"][:20].mean(), "a run that learns nothing proves little"


@pytest.mark.parametrize("model", MODELS)
def test_PE03_PE11_bf16_mixed_bit_for_bit(make_job, run_mantissa, model):
    job = make_job(model=model, precision="bf16-mixed", optimizer="adamw", lr=1e-3, batch_size=batch_size(model),
                   batches=10 if model == "gpt-tiny" else 60, gradient_clip_val=1.0)
    assert_same(run_mantissa(job), reference.run(job))


@pytest.mark.parametrize("model", MODELS)
def test_PE03_PE11_16_mixed_scale_and_skips_at_every_step(make_job, run_mantissa, model):
    """A scale that starts near overflow and grows every third step: both sides skip the same steps."""
    job = make_job(model=model, precision="16-mixed", optimizer="sgd", lr=0.02, batch_size=batch_size(model),
                   batches=10 if model == "gpt-tiny" else 60, gradient_clip_val=1.0,
                   scaler={"init_scale": 2.0**20, "growth_interval": 3})
    ours, theirs = run_mantissa(job), reference.run(job)
    assert_same(ours, theirs)
    assert theirs["skipped"].sum() > 0
    assert theirs["scale"].unique().numel() > 2


def test_16_mixed_default_scaler(make_job, run_mantissa):
    job = make_job(model="convnet", precision="16-mixed", batches=30)
    assert_same(run_mantissa(job), reference.run(job))


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "16-mixed"])
def test_accumulation_and_clipping_bit_for_bit(make_job, run_mantissa, precision):
    """61 batches in windows of 3: the last window is short, and still takes a step."""
    job = make_job(model="convnet", precision=precision, batches=61, accumulate_grad_batches=3, gradient_clip_val=0.5,
                   optimizer="adamw", lr=1e-3)
    assert_same(run_mantissa(job), reference.run(job))


@pytest.mark.parametrize(("precision", "optimizer"), [("bf16-true", "sgd"), ("16-true", "sgd"), ("bf16-true", "adamw")])
def test_PE08_PE09_true_half_bit_for_bit(make_job, run_mantissa, precision, optimizer):
    """The optimizer computes in 16 bits, with momentum and decay. No AdamW in fp16, where its epsilon is 0."""
    job = make_job(model="convnet", precision=precision, optimizer=optimizer, lr=LEARNING_RATE[optimizer], batches=60,
                   momentum=0.9, weight_decay=0.01)
    assert_same(run_mantissa(job), reference.run(job))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("model", ["convnet", "resnet-tiny"])
def test_channels_last_bit_for_bit(make_job, run_mantissa, model, precision):
    job = make_job(model=model, precision=precision, batches=30, momentum=0.9, channels_last=True)
    assert_same(run_mantissa(job), reference.run(job))


def test_one_thread_bit_for_bit(make_job, run_mantissa):
    job = make_job(model="resnet-tiny", threads=1, batches=20)
    assert_same(run_mantissa(job), reference.run(job))
