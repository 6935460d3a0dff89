"""Compares our fused optimizers with torch.optim's with fused=True: equal weights and gradients give equal bits.

Where Python's have a bug, one test shows that they still have it, and another one shows what ours do.
"""

import pytest
import reference
import torch
from conftest import assert_same
from safetensors.torch import save_file

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}
CASES = {
    "adam": {"optimizer": "fused-adam", "lr": 0.02, "weight_decay": 0.05},
    "adam, amsgrad": {"optimizer": "fused-adam", "lr": 0.02, "beta1": 0.5, "beta2": 0.7, "eps": 1e-4, "amsgrad": True},
    "adamw": {"optimizer": "fused-adamw", "lr": 0.01, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1},
    "adamw, amsgrad, maximize": {"optimizer": "fused-adamw", "lr": 0.01, "amsgrad": True, "maximize": True},
    "sgd": {"optimizer": "fused-sgd", "lr": 0.05},
    "sgd, momentum": {"optimizer": "fused-sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.01},
    "sgd, dampening, maximize": {"optimizer": "fused-sgd", "lr": 0.05, "momentum": 0.7, "dampening": 0.3,
                                 "weight_decay": 0.05, "maximize": True},
    "sgd, nesterov": {"optimizer": "fused-sgd", "lr": 0.03, "momentum": 0.95, "weight_decay": 0.1, "nesterov": True},
    "adagrad": {"optimizer": "fused-adagrad", "lr": 0.1},
    "adagrad, all": {"optimizer": "fused-adagrad", "lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.05,
                     "initial_accumulator_value": 0.25, "maximize": True},
}
LARGE = [(300, 70), (1003,), (7,), (), (0, 3)]
TAILS = [(7,), (3, 5), (1,), ()]  # shorter than any vector of 16-bit numbers: kernels process them one by one
STEPS = 6


def make_tensors(shapes, dtype, steps=STEPS):
    """{"<weight>": ..., "<step>.<weight>": ...}."""
    generator = torch.Generator().manual_seed(5)
    tensors = {str(i): torch.randn(shape, generator=generator).to(dtype) for i, shape in enumerate(shapes)}
    for step in range(steps):
        for i, shape in enumerate(shapes):
            tensors[f"{step}.{i}"] = torch.randn(shape, generator=generator).to(dtype)
    return tensors


def run_python(case, tensors, found_inf, scale=None):
    options = {key: value for key, value in case.items() if key not in ("optimizer", "beta1", "beta2")}
    if "beta1" in case:
        options["betas"] = (case["beta1"], case["beta2"])
    parameters = [tensors[key].clone().requires_grad_() for key in tensors if key.isdigit()]
    path = {"fused": True} if case["optimizer"].startswith("fused-") else {"foreach": False}
    optimizer = CLASSES[case["optimizer"].removeprefix("fused-")](parameters, **path, **options)
    for step, flag in enumerate(found_inf):
        for i, parameter in enumerate(parameters):
            gradient = tensors.get(f"{step}.{i}")
            parameter.grad = None if gradient is None else gradient.clone()
        if scale:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(float(flag))
        optimizer.step()
    result = {}
    for i, parameter in enumerate(parameters):
        result[str(i)] = parameter.detach()
        result[f"{i}.grad"] = parameter.grad
        result.update({f"{i}.{key}": value for key, value in optimizer.state[parameter].items() if value is not None})
    return result


@pytest.fixture
def run_ours(tmp_path, run_mantissa):
    def run(case, tensors, found_inf, scale=None):
        save_file(tensors, tmp_path / "tensors.safetensors")
        job = {**case, "threads": torch.get_num_threads(), "tensors": str(tmp_path / "tensors.safetensors"),
               "found_inf": found_inf, "output": str(tmp_path / "output.safetensors")}
        return run_mantissa(job | ({"scale": scale} if scale else {}))

    return run


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), f"{name}: {(ours[name] != value).sum()} of {value.numel()} differ"


def errs_in_python(case, dtype):
    return case["optimizer"] == "fused-sgd" and dtype.itemsize == 2


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_PE10_bit_for_bit(run_ours, name, dtype, scaled):
    """With a scaler, whose scale is not a power of two here, the fourth step is skipped."""
    case = CASES[name]
    tensors = make_tensors(TAILS if errs_in_python(case, dtype) else LARGE, dtype)
    arguments = (tensors, [0, 0, 0, int(scaled), 0, 0], 3.0 if scaled else None)
    theirs = run_python(case, *arguments)
    assert_equal(run_ours(case, *arguments), theirs)
    assert not torch.equal(theirs["0"], tensors["0"]), "a run in which nothing moves proves little"


@pytest.mark.parametrize("name", ["adamw", "adagrad, all", "sgd"])
def test_weights_whose_gradients_come_late(run_ours, name):
    tensors = make_tensors(LARGE, torch.float32)
    for step in range(3):
        del tensors[f"{step}.1"]
    arguments = (tensors, [0] * STEPS)
    assert_equal(run_ours(CASES[name], *arguments), run_python(CASES[name], *arguments))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["sgd", "sgd, momentum", "sgd, dampening, maximize", "sgd, nesterov"])
def test_sgd_moves_16_bit_weights_where_python_does_not(run_ours, name, dtype):
    """Ours equals Python's own kernel on float32 copies, rounded to nearest."""
    case, tensors = CASES[name], make_tensors([(64, 32)], dtype, steps=1)
    theirs = run_python(case, tensors, [0])["0"]
    assert torch.equal(theirs, tensors["0"]), "Python's fused SGD is mended: compare with it in test_bit_for_bit"
    wide = run_python(case, {key: value.float() for key, value in tensors.items()}, [0])
    ours = run_ours(case, tensors, [0])
    for key, value in wide.items():
        assert torch.equal(ours[key], value.to(dtype)), key


def test_sgd_whose_first_step_was_dropped(run_ours):
    """Python uses uninitialised memory as momentum; ours equals Python without the skipped step."""
    case = CASES["sgd, dampening, maximize"]
    tensors = make_tensors(LARGE, torch.float32)
    later = {key: value for key, value in tensors.items() if not key.startswith("0.")}
    shifted = {f"{int(key.split('.')[0]) - 1}.{key.split('.')[1]}" if "." in key else key: value
               for key, value in later.items()}
    want = run_python(case, shifted, [0] * (STEPS - 1), scale=8.0)
    assert_equal(run_ours(case, tensors, [1] + [0] * (STEPS - 1), scale=8.0), want)


@pytest.mark.parametrize("name", ["adamw", "adagrad", "sgd, momentum"])
def test_flags_of_two_devices_drop_the_step(run_ours, name):
    """GradScaler adds up the flags. Python's kernels do not recognize a 2, and take the step."""
    case, tensors = CASES[name], make_tensors([(100,)], torch.float32, steps=3)
    tensors["2.0"].fill_(torch.inf)
    want = run_python(case, tensors, [0, 0, 1], scale=8.0)
    assert_equal(run_ours(case, tensors, [0, 0, 2], scale=8.0), want)
    assert not torch.equal(run_python(case, tensors, [0, 0, 2], scale=8.0)["0"], want["0"]), "Python is mended"


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "bf16-mixed"])
def test_training_bit_for_bit(make_job, run_mantissa, precision):
    """Not in fp16, where the squared gradients that AdamW keeps underflow on both sides."""
    job = make_job(model="convnet", precision=precision, optimizer="fused-adamw", lr=1e-3, batches=60)
    assert_same(run_mantissa(job), reference.run(job))


def test_16_mixed_scale_and_skips_at_every_step(make_job, run_mantissa):
    """The scaler passes its scale on, and the optimizer skips the step itself."""
    job = make_job(model="convnet", precision="16-mixed", optimizer="fused-adamw", lr=1e-3, batches=60,
                   scaler={"init_scale": 2.0**20, "growth_interval": 3})
    theirs = reference.run(job)
    assert_same(run_mantissa(job), theirs)
    assert theirs["skipped"].sum() > 0
