"""Reads checkpoints in Python: the weights as any safetensors file, the rest with the reader that the docs print."""

import math
import subprocess

import pytest
import reference
import torch
from conftest import BUILD
from safetensors.torch import load_file

NUMBERS = torch.arange(6).reshape(2, 3)
COMPLEX = torch.complex(NUMBERS.double(), -NUMBERS.double())


@pytest.fixture
def checkpoint(tmp_path):
    subprocess.run([BUILD / "checkpoint_runner", tmp_path / "step=1200"], check=True)
    return tmp_path / "step=1200"


def same(ours, theirs):
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def test_safetensors_reads_the_weights(checkpoint):
    weights = load_file(checkpoint / "weights.safetensors")
    assert weights.keys() == {"0.weight", "0.bias", "0.phase"}
    same(weights["0.weight"], NUMBERS.float())
    same(weights["0.bias"], NUMBERS.bfloat16().t())


def test_the_reader_of_the_docs_reads_all_of_it(checkpoint):
    step, weights, state = reference.load_checkpoint(checkpoint)
    assert step == 1200
    same(weights["0.weight"], NUMBERS.float())
    same(weights["0.phase"], COMPLEX)
    same(state["optimizers"][0]["exp_avg"], NUMBERS)
    assert state["optimizers"][0]["lr"] == 0.1
    numbers = state["numbers"]
    assert numbers[:6] == [1, 1.0, 0.0, 5e-324, math.inf, -math.inf] and math.isnan(numbers[6]) and numbers[7] == -2**63
    assert [type(number) for number in numbers] == [int, float, float, float, float, float, float, int]
    assert math.copysign(1, numbers[2]) == -1
    same(state["complex"], COMPLEX[0, 2])
    assert state["$name"] == {"$tensor": "a name"}
    assert (state["text"], state["nothing"], state["flag"]) == ("Grüße\n", None, True)

    file = checkpoint / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="was written with"):
        reference.load_checkpoint(checkpoint)


def test_the_readers_checksums_find_a_flipped_bit(checkpoint):
    for name in "weights.safetensors", "manifest.json":
        content = bytearray((checkpoint / name).read_bytes())
        content[-60] ^= 1
        (checkpoint / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: damaged"):
            reference.load_checkpoint(checkpoint)
        content[-60] ^= 1
        (checkpoint / name).write_bytes(content)
