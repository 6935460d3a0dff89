"""Compares `mantissa convert` and `mantissa inspect` with PyTorch's safetensors; reads shards as transformers does."""

import json
import subprocess

import pytest
import torch
from conftest import BUILD
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def mantissa(*arguments, cwd):
    return subprocess.run([BUILD / "mantissa", *arguments], cwd=cwd, capture_output=True, text=True)


def load_sharded(folder):
    """Reads an index as transformers does: each tensor from the file that the weight map names."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors = {}
    for name, shard in index["weight_map"].items():
        with safe_open(folder / shard, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            tensors[name] = file.get_tensor(name)
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in tensors.values())
    return tensors


def model():
    torch.manual_seed(0)
    tensors = {f"layers.{i}.{kind}": torch.randn(64, 33 + i) for i in range(6) for kind in ("q", "k", "v")}
    return tensors | {"scale": torch.tensor(2.5), "empty": torch.empty(0, 3), "ids": torch.arange(7)}


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype and ours[name].shape == value.shape, name
        assert torch.equal(ours[name].reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8)), name


@pytest.mark.parametrize("size", ["10KB", "1", "40KiB"])
def test_python_reads_our_shards(tmp_path, size):
    save_file(model(), tmp_path / "in.safetensors", metadata={"format": "pt"})
    done = mantissa("convert", "in.safetensors", "out", "--max-shard-size", size, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same(load_sharded(tmp_path / "out"), model())
    limit = {"10KB": 10_000, "1": 1, "40KiB": 40_960}[size]
    for shard in (tmp_path / "out").glob("*.safetensors"):
        tensors = load_file(shard)
        assert len(tensors) == 1 or sum(value.nbytes for value in tensors.values()) <= limit


def test_we_read_shards_of_python_and_merge_them(tmp_path):
    tensors = model()
    names = list(tensors)
    shards = {f"model-{i + 1:05}-of-00003.safetensors": names[i::3] for i in range(3)}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, tmp_path / shard, metadata={"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({
        "metadata": {"total_size": 1}, "weight_map": {name: shard for shard, held in shards.items() for name in held}}))
    done = mantissa("convert", ".", "whole.safetensors", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same(load_file(tmp_path / "whole.safetensors"), tensors)
    save_file(tensors, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


@pytest.mark.parametrize("dtype, torch_dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp64", torch.float64),
                                                ("fp8-e4m3", torch.float8_e4m3fn), ("fp8-e5m2", torch.float8_e5m2)])
def test_casts_are_pytorchs(tmp_path, dtype, torch_dtype):
    save_file(model(), tmp_path / "in.safetensors")
    done = mantissa("convert", "in.safetensors", "out.safetensors", "--dtype", dtype, "--keep-fp32", "scale",
                    "--rename", r"^layers\.(\d+)\.=>h.$1.", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same(load_file(tmp_path / "out.safetensors"),
         {name.replace("layers.", "h."): value.to(torch_dtype) if value.is_floating_point() and name != "scale" else value
          for name, value in model().items()})


def test_ranges_are_pytorchs(tmp_path):
    tensors = model()
    tensors["layers.0.q"][3, 4:7] = torch.tensor([float("nan"), float("inf"), 1e-40])
    tensors |= {"half": torch.randn(999).half(), "z": torch.randn(9, dtype=torch.complex64), "mask": torch.rand(50) > 0.5}
    save_file(tensors, tmp_path / "in.safetensors")
    done = mantissa("inspect", "--json", "--check", "in.safetensors", cwd=tmp_path)
    assert done.returncode == 3 and "1 tensor holds nan or inf: layers.0.q" in done.stderr
    seen = {tensor["name"]: tensor for tensor in json.loads(done.stdout)[0]["tensors"]}
    assert seen.keys() == tensors.keys()
    for name, value in tensors.items():
        ours = seen[name]
        assert ours["shape"] == list(value.shape) and ours["bytes"] == value.nbytes
        values = (torch.view_as_real(value) if value.is_complex() else value).double().flatten()
        finite = values[values.isfinite()]
        assert (ours["nan"], ours["inf"]) == (values.isnan().sum(), values.isinf().sum()), name
        assert ours["zero"] == (values == 0).sum() and ours["denormal"] == (1 if name == "layers.0.q" else 0)
        if len(finite):
            assert (ours["min"], ours["max"]) == (finite.min(), finite.max())
            assert ours["mean"] == pytest.approx(finite.mean().item(), rel=1e-12, abs=1e-15)
            assert ours["std"] == pytest.approx(finite.std(unbiased=False).item(), rel=1e-12)
        else:
            assert ours["min"] is None and ours["std"] is None
