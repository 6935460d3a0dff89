"""Compares the 8-bit optimizers with bitsandbytes on the CPU, and passes states from one to the other.

bitsandbytes's CPU kernels store a state that is a tiny part of its block's largest, or 0, as about 2e-5 of it. Weights
without gradient therefore drift there; the gradients here have no zeros. docs/8bit-optimizers.md lists the differences.
"""

import copy
import json
import subprocess

import bitsandbytes
import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file, save_file

WRAPPER = "__bnb_optimizer_quant_state__"
CASES = {
    "adam8bit": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "adamw8bit": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.995, "eps": 1e-8, "weight_decay": 0.01},
    "lion8bit": {"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
    "sgd8bit": {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.01},
    "rmsprop8bit": {"lr": 1e-3, "alpha": 0.99, "eps": 1e-8},
    "adagrad8bit": {"lr": 1e-2, "eps": 1e-10},
}
CLASSES = {name.lower(): getattr(bitsandbytes.optim, name)
           for name in ("Adam8bit", "AdamW8bit", "Lion8bit", "SGD8bit", "RMSprop8bit", "Adagrad8bit")}
SHAPES = [(64, 80), (4097,), (100,)]  # the last one has 32-bit states
STEPS = 10


def make_tensors():
    generator = torch.Generator().manual_seed(5)
    tensors = {str(i): torch.randn(shape, generator=generator) for i, shape in enumerate(SHAPES)}
    for step in range(STEPS):
        for i, shape in enumerate(SHAPES):
            tensors[f"{step}.{i}"] = torch.randn(shape, generator=generator) + 1e-4
    return tensors


class Theirs:
    def __init__(self, name, weights):
        options = dict(CASES[name])
        if "beta1" in options:
            options["betas"] = (options.pop("beta1"), options.pop("beta2"))
        self.weights = [weight.clone().requires_grad_() for weight in weights]
        self.optimizer = CLASSES[name](self.weights, **options)

    def take_steps(self, tensors, start, stop):
        for step in range(start, stop):
            for i, weight in enumerate(self.weights):
                weight.grad = tensors[f"{step}.{i}"].clone()
            self.optimizer.step()
        return [weight.detach() for weight in self.weights]


@pytest.fixture
def run_ours(tmp_path):
    def run(name, tensors, start, stop, state_dict=None, is_wrapped=True):
        """Returns the weights, and the state in Python's form."""
        tensors, job = dict(tensors), {"optimizer": name, "threads": 2, "from": start, "to": stop, **CASES[name]}
        if state_dict:
            def named(value, path):
                if isinstance(value, dict):
                    return {str(key): named(item, f"{path}.{key}") for key, item in value.items()}
                if isinstance(value, torch.Tensor):
                    tensors[path] = value.clone()
                    return path
                return list(value) if isinstance(value, tuple) else value

            job["state"] = named(state_dict["state"], "state")
            job["param_groups"] = [named(group, "") for group in state_dict["param_groups"]]
        save_file(tensors, tmp_path / "tensors.safetensors")
        job |= {"tensors": str(tmp_path / "tensors.safetensors"), "output": str(tmp_path / "output.safetensors"),
                "output_state": str(tmp_path / "state.json"), "is_wrapped": is_wrapped}
        (tmp_path / "job.json").write_text(json.dumps(job))
        subprocess.run([BUILD / "optimizer_8bit_runner", tmp_path / "job.json"], check=True)
        result, written = load_file(job["output"]), json.loads((tmp_path / "state.json").read_text())

        def with_tensors(value):
            if isinstance(value, dict):
                return {key: with_tensors(item) for key, item in value.items()}
            return result[value] if isinstance(value, str) else value

        state = {int(number): with_tensors(entry) for number, entry in written["state"].items()}
        return [result[str(i)] for i in range(len(SHAPES))], {"state": state, "param_groups": written["param_groups"]}

    return run


def assert_near(name, ours, theirs):
    """A state near the middle between two codes may get either, and the difference feeds back. It is large where the
    state itself is tiny, because there bitsandbytes's CPU kernels have no code that is as small."""
    lr = CASES[name]["lr"]
    for a, b in zip(ours, theirs, strict=True):
        difference = (a - b).abs()
        if name == "lion8bit":  # an element whose direction is near 0 may go the other way
            assert (difference > 1e-6).float().mean() < 0.01
            assert difference.max() <= 2 * lr * STEPS * 1.01
        else:
            assert (difference > 0.1 * lr).float().mean() < 0.02
            assert difference.mean() <= 1e-2 * lr


@pytest.mark.parametrize("name", CASES)
def test_Q39_Q42_steps_are_near(run_ours, name):
    tensors = make_tensors()
    start = [tensors[str(i)] for i in range(len(SHAPES))]
    theirs = Theirs(name, start).take_steps(tensors, 0, STEPS)
    ours, _ = run_ours(name, tensors, 0, STEPS)
    assert_near(name, ours, theirs)
    assert not torch.allclose(ours[0], start[0], atol=1e-5), "a run in which nothing moves proves little"


def without_wrapper(state_dict):
    flat = copy.deepcopy(state_dict)
    for entry in flat["state"].values():
        entry.update(entry.pop(WRAPPER))
    return flat


@pytest.mark.parametrize("is_wrapped", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_Q49_a_run_of_bitsandbytes_continues_here(run_ours, name, is_wrapped):
    tensors = make_tensors()
    theirs = Theirs(name, [tensors[str(i)] for i in range(len(SHAPES))])
    middle = theirs.take_steps(tensors, 0, 5)
    state_dict = copy.deepcopy(theirs.optimizer.state_dict())
    assert WRAPPER in state_dict["state"][0]
    state_dict = state_dict if is_wrapped else without_wrapper(state_dict)
    continued = {key: value for key, value in tensors.items() if "." in key}
    continued |= {str(i): weight.clone() for i, weight in enumerate(middle)}
    # Without a step, the state comes back as it was.
    _, back = run_ours(name, continued, 5, 5, state_dict, is_wrapped)
    for i, entry in state_dict["state"].items():
        assert back["state"][i]["step"] == entry["step"] == 5
        got, want = (state["state"][i].get(WRAPPER, state["state"][i]) for state in (back, state_dict))
        assert got.keys() == want.keys()
        for key, value in want.items():
            if isinstance(value, torch.Tensor):
                assert got[key].dtype == value.dtype and torch.allclose(got[key].float(), value.float(), rtol=0, atol=1e-7)
    for key in ("lr", "eps", "weight_decay"):
        assert back["param_groups"][0][key] == state_dict["param_groups"][0][key]
    assert back["param_groups"][0].keys() == state_dict["param_groups"][0].keys()
    ours, _ = run_ours(name, continued, 5, STEPS, state_dict, is_wrapped)
    assert_near(name, ours, theirs.take_steps(tensors, 5, STEPS))


@pytest.mark.parametrize("is_wrapped", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_Q49_a_run_of_ours_continues_in_bitsandbytes(run_ours, name, is_wrapped):
    tensors = make_tensors()
    middle, state_dict = run_ours(name, tensors, 0, 5, is_wrapped=is_wrapped)
    theirs = Theirs(name, middle)
    theirs.optimizer.load_state_dict(state_dict)
    ours, _ = run_ours(name, tensors, 0, STEPS)
    assert_near(name, ours, theirs.take_steps(tensors, 5, STEPS))
    fresh = Theirs(name, middle).take_steps(tensors, 5, STEPS)
    if name != "lion8bit":
        assert max((a - b).abs().max() for a, b in zip(ours, fresh, strict=True)) > 0.5 * CASES[name]["lr"], \
            "a run that forgets the state must be seen"
