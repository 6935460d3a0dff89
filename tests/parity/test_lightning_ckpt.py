"""tools/lightning_ckpt.py on checkpoints that Lightning really wrote, and on files that want to run code."""

import json
import os
import pathlib
import subprocess
import sys

import lightning
import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file

SCRIPT = pathlib.Path(__file__).parents[2] / "tools" / "lightning_ckpt.py"


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


class Task(lightning.LightningModule):
    def __init__(self, lr=0.1, **more):
        super().__init__()
        self.save_hyperparameters()
        self.model = Tied()

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.model(batch), batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def train(folder, **hyper_parameters):
    task = Task(**hyper_parameters)
    trainer = lightning.Trainer(default_root_dir=folder, max_epochs=2, accelerator="cpu", logger=False, precision="bf16-mixed",
                                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    trainer.fit(task, torch.utils.data.DataLoader(torch.arange(21) % 7, batch_size=7))
    trainer.save_checkpoint(folder / "run.ckpt")
    return task


def run(*arguments, cwd):
    return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True)


def refused(done, folder, *parts):
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("lightning_ckpt: error: ") and done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr
    assert not (folder / "out").exists() and not [*folder.glob(".out*")]


def test_weights_and_numbers_arrive(tmp_path):
    task = train(tmp_path, lr=0.25, sizes=(1, 2), note="n", limit=float("inf"))
    done = run("run.ckpt", "out", "--strip-prefix", "model.", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    weights, want = load_file(tmp_path / "out" / "weights.safetensors"), task.model.state_dict()
    assert weights.keys() == want.keys()
    for name, value in want.items():
        assert weights[name].dtype == value.dtype and torch.equal(weights[name], value), name
    info = json.loads((tmp_path / "out" / "lightning.json").read_text())
    assert (info["epoch"], info["global_step"]) == (2, 6)
    assert info["lightning_version"] == lightning.__version__
    assert info["hyper_parameters"] == {"lr": 0.25, "sizes": [1, 2], "note": "n", "limit": "inf"}
    assert info["tied"] == {"head.weight": "embed.weight"} and not info["left_out"]
    seen = subprocess.run([BUILD / "mantissa", "inspect", "--json", "--check", tmp_path / "out"], capture_output=True, text=True)
    assert seen.returncode == 0, seen.stderr
    assert [tensor["name"] for tensor in json.loads(seen.stdout)[0]["tensors"]] == sorted(want)
    reloaded = Tied()
    reloaded.load_state_dict(weights)


def test_names_stay_without_a_prefix_and_the_hint_names_it(tmp_path):
    task = train(tmp_path)
    done = run("run.ckpt", "out", cwd=tmp_path)
    assert done.returncode == 0 and "--strip-prefix model." in done.stdout
    assert load_file(tmp_path / "out" / "weights.safetensors").keys() == task.state_dict().keys()
    again = run("run.ckpt", "out", cwd=tmp_path)
    assert again.returncode == 1 and "is there already" in again.stderr
    refused(run("run.ckpt", "out2", "--strip-prefix", "net.", cwd=tmp_path), tmp_path / "none",
            "no name begins with 'net.'", "model.")


class Runs:
    """Pickled, it is a call of os.mkdir."""

    def __reduce__(self):
        return os.mkdir, ("it-ran",)


def test_code_is_not_run_unless_it_is_trusted(tmp_path):
    torch.save({"state_dict": {"w": torch.ones(2)}, "hyper_parameters": {"x": Runs()}}, tmp_path / "run.ckpt")
    refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "mkdir", "runs code", "--trust")
    assert not (tmp_path / "it-ran").exists()
    done = run("run.ckpt", "out", "--trust", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "it-ran").exists()


def test_lightnings_own_file_with_an_object_of_the_user(tmp_path):
    train(tmp_path, device=pathlib.PurePosixPath("a/b"))
    refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "pathlib", "--trust")
    assert run("run.ckpt", "out", "--trust", cwd=tmp_path).returncode == 0
    info = json.loads((tmp_path / "out" / "lightning.json").read_text())
    assert info["hyper_parameters"]["device"] == "a/b"


def test_views_extra_state_and_complex(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    state = {"rows": base[1:], "columns": base.t(), "again": base.t(), "z": torch.ones(2, dtype=torch.complex64).conj() * 1j,
             "empty": torch.empty(0, 3), "also_empty": torch.empty(0, 3), "fp8": torch.ones(4).to(torch.float8_e4m3fn),
             "norm._extra_state": {"steps": 3}}
    torch.save({"state_dict": state}, tmp_path / "run.ckpt")
    done = run("run.ckpt", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "norm._extra_state" in done.stderr
    weights = load_file(tmp_path / "out" / "weights.safetensors")
    for name in weights:
        assert torch.equal(weights[name].to(state[name].dtype), state[name].resolve_conj()), name
    assert weights.keys() == state.keys() - {"norm._extra_state"}
    info = json.loads((tmp_path / "out" / "lightning.json").read_text())
    assert info["tied"] == {"again": "columns"} and info["left_out"] == ["norm._extra_state"]
    assert (tmp_path / "out" / "weights.safetensors").stat().st_size < 2000


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04cut"])
def test_files_that_are_no_checkpoints(tmp_path, content):
    (tmp_path / "run.ckpt").write_bytes(content)
    refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "run.ckpt", "get the file again")
    refused(run("absent.ckpt", "out", cwd=tmp_path), tmp_path, "is no file")


def test_a_truncated_checkpoint_and_a_plain_state_dict(tmp_path):
    train(tmp_path)
    whole = (tmp_path / "run.ckpt").read_bytes()
    for share in (0.2, 0.5, 0.9, 0.99):
        (tmp_path / "run.ckpt").write_bytes(whole[: int(len(whole) * share)])
        refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "get the file again")
    torch.save({"w": torch.ones(2)}, tmp_path / "run.ckpt")
    refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "has no state_dict")


def test_names_that_would_collide(tmp_path):
    torch.save({"state_dict": {"w": torch.ones(2), "model.w": torch.ones(2)}}, tmp_path / "run.ckpt")
    refused(run("run.ckpt", "out", "--strip-prefix", "model.", cwd=tmp_path), tmp_path, "there twice")
