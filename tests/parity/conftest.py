import json
import os
import pathlib
import subprocess

import jobs
import pytest
import torch
from safetensors.torch import load_file, save_file

# Equal bits need the same kernels on both sides. test_cpu_kernels.py tests our kernels.
os.environ["MANTISSA_CPU_KERNELS"] = "0"

BUILD = pathlib.Path(os.environ.get("MANTISSA_BUILD", pathlib.Path(__file__).parents[2] / "build"))


@pytest.fixture
def make_job(tmp_path):
    return lambda **overrides: jobs.write_job(tmp_path, **overrides)


@pytest.fixture
def run_mantissa(tmp_path):
    def run(job):
        file = tmp_path / "job.json"
        file.write_text(json.dumps(job))
        subprocess.run([BUILD / "parity_runner", file], check=True)
        return load_file(job["output"])

    return run


@pytest.fixture
def runner(tmp_path):
    """Makes a function that passes a file of tensors to a program, and returns the tensors that it writes."""
    def runner_of(program):
        def run(kind, tensors, *arguments):
            given, written = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, given)
            done = subprocess.run([BUILD / program, kind, given, written, *map(str, arguments)], capture_output=True,
                                  text=True)
            if done.returncode == 2:  # it refuses the input
                raise ValueError(done.stderr)
            done.check_returncode()
            return load_file(written)

        return run

    return runner_of


def assert_same(ours, theirs):
    """Checks equality bit for bit, and reports the first difference."""
    assert ours.keys() == theirs.keys()
    assert ours["skipped"].tolist() == theirs["skipped"].tolist()
    assert ours["scale"].tolist() == theirs["scale"].tolist()
    different = (ours["loss"] != theirs["loss"]).nonzero().flatten().tolist()
    assert not different, f"losses differ first at step {different[0]} of {len(ours['loss'])}"
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), f"{name}: {(ours[name] != value).sum()} of {value.numel()} differ"
