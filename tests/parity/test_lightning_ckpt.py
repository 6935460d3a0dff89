"""Tests of tools/lightning_ckpt.py: checkpoints that Lightning wrote, files that try to run code, and runs that
Lightning began and Mantissa finishes."""

import json
import os
import pathlib
import subprocess
import sys

import lightning
import pytest
import reference
import torch
from conftest import BUILD, assert_same
from safetensors.torch import load_file
from test_lightning import Twin, run_lightning

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
    names = [tensor["name"] for tensor in json.loads(seen.stdout)[0]["tensors"]]
    assert [name for name in names if not name.startswith("state/")] == sorted(want)
    assert "state/optimizers.0.state.0.exp_avg" in names
    reloaded = Tied()
    reloaded.load_state_dict(weights)


def test_names_stay_without_a_prefix_and_the_hint_names_it(tmp_path):
    task = train(tmp_path)
    done = run("run.ckpt", "out", cwd=tmp_path)
    assert done.returncode == 0 and "--strip-prefix model." in done.stdout
    assert load_file(tmp_path / "out" / "weights.safetensors").keys() == task.state_dict().keys()
    again = run("run.ckpt", "out", cwd=tmp_path)
    assert again.returncode == 1 and "already exists" in again.stderr
    refused(run("run.ckpt", "out2", "--strip-prefix", "net.", cwd=tmp_path), tmp_path / "none",
            "no name begins with 'net.'", "model.")


class Runs:
    """Unpickling it calls os.mkdir."""

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
    refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "run.ckpt", "download the file again")
    refused(run("absent.ckpt", "out", cwd=tmp_path), tmp_path, "is not a file")


def test_a_truncated_checkpoint_and_a_plain_state_dict(tmp_path):
    train(tmp_path)
    whole = (tmp_path / "run.ckpt").read_bytes()
    for share in (0.2, 0.5, 0.9, 0.99):
        (tmp_path / "run.ckpt").write_bytes(whole[: int(len(whole) * share)])
        refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "download the file again")
    torch.save({"w": torch.ones(2)}, tmp_path / "run.ckpt")
    refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "has no state_dict")


def test_names_that_would_collide(tmp_path):
    torch.save({"state_dict": {"w": torch.ones(2), "model.w": torch.ones(2)}}, tmp_path / "run.ckpt")
    refused(run("run.ckpt", "out", "--strip-prefix", "model.", cwd=tmp_path), tmp_path, "a duplicate")


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("optimizer,steps", [("adamw", 62), ("sgd", 41)])
def test_ours_ends_what_lightning_began_bit_for_bit(make_job, run_mantissa, tmp_path, precision, optimizer, steps):
    job = make_job(model="convnet", precision=precision, batches=31, optimizer=optimizer, lr=1e-3)
    begun = {**job, "max_epochs": -1, "max_steps": steps}
    run_lightning(begun, tmp_path, save=tmp_path / "run.ckpt")
    done = run("run.ckpt", "out", "--strip-prefix", "model.", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"resumes from epoch {steps // 31}, batch {steps % 31}, step {steps}" in done.stdout
    theirs = run_lightning({**job, "max_epochs": 3}, tmp_path)
    ours = run_mantissa({**job, "max_epochs": 3, "ckpt_path": str(tmp_path / "out")})
    for name in "loss", "scale", "skipped":
        theirs[name] = theirs[name][steps:]
    assert_same(ours, theirs)


class Scheduled(Twin):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def test_the_docs_reader_finds_schedule_scale_and_progress(make_job, tmp_path):
    job = make_job(precision="bf16-mixed", batches=5)
    run_lightning({**job, "max_epochs": 2}, tmp_path, save=tmp_path / "run.ckpt", twin=Scheduled)
    checkpoint = torch.load(tmp_path / "run.ckpt", weights_only=True)
    scaler = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 7}
    torch.save({**checkpoint, "MixedPrecision": scaler}, tmp_path / "run.ckpt")
    assert run("run.ckpt", "out", cwd=tmp_path).returncode == 0
    step, weights, state = reference.load_checkpoint(tmp_path / "out")
    assert step == 10 and weights.keys() == checkpoint["state_dict"].keys()
    assert state["precision"] == {"name": "16-mixed", "state": {"loss_scale": scaler}}
    assert state["schedules"] == [{"scheduler": {"step_count": 2, "base_lrs": [0.05]}}]
    assert state["progress"] == {"epoch": 2, "batches": 0, "total_batches": 10, "global_step": 10, "skipped_steps": 0,
                                 "validated_batches": 10}
    assert state["optimizers"][0]["param_groups"][0]["lr"] == 0.05 / 4
    buffer = checkpoint["optimizer_states"][0]["state"][0]["momentum_buffer"]
    assert torch.equal(state["optimizers"][0]["state"]["0"]["momentum_buffer"], buffer)


def test_what_is_no_training_state_is_refused_or_left_out(make_job, tmp_path):
    job = make_job(batches=3)
    run_lightning(job, tmp_path, save=tmp_path / "run.ckpt")
    whole = torch.load(tmp_path / "run.ckpt", weights_only=True)
    torch.save({**whole, "optimizer_states": [{"state": {}}]}, tmp_path / "run.ckpt")
    refused(run("run.ckpt", "out", cwd=tmp_path), tmp_path, "param_groups", "--weights-only")
    done = run("run.ckpt", "out", "--weights-only", cwd=tmp_path)
    assert done.returncode == 0 and not (tmp_path / "out" / "manifest.json").exists()
    torch.save({**whole, "lr_schedulers": [{"milestones": 3}]}, tmp_path / "run.ckpt")
    done = run("run.ckpt", "out2", cwd=tmp_path)
    assert done.returncode == 0 and "lr_schedulers.0" in done.stderr
