"""Compares our Trainer with Lightning's, live, for precision x accumulation x clipping: equal losses and weights; and the
names of its modes."""

import subprocess
import warnings
from typing import get_args

import lightning
import pytest
import reference
import torch
from conftest import BUILD, assert_same
from lightning.fabric.connector import _PRECISION_INPUT_STR
from safetensors.torch import load_file


class Twin(lightning.LightningModule):
    def __init__(self, job):
        super().__init__()
        self.job = job
        self.model = reference.make_model(job)
        self.model.load_state_dict(load_file(job["weights"]))
        self.losses = []

    def training_step(self, batch, _):
        data, target = batch
        loss = reference.cross_entropy(self.model(data), target)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        return reference.make_optimizer(self.job, self.parameters())


def run_lightning(job, tmp_path, save=None, twin=Twin):
    """Returns the task's values at each step, and the weights; writes the trainer's checkpoint to the file `save`."""
    torch.set_num_threads(job["threads"])
    tensors = load_file(job["data"])
    batches = [(tensors["data"][i], tensors["target"][i]) for i in tensors["order"]]
    task = twin(job)
    trainer = lightning.Trainer(
        accelerator="cpu", precision=job["precision"], max_epochs=job.get("max_epochs", 1),
        max_steps=job.get("max_steps", -1), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        accumulate_grad_batches=job["accumulate_grad_batches"], gradient_clip_val=job["gradient_clip_val"] or None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))
    if save:
        trainer.save_checkpoint(save)
    steps = len(task.losses)
    result = {"loss": torch.stack(task.losses), "scale": torch.zeros(steps, dtype=torch.float64),
              "skipped": torch.zeros(steps, dtype=torch.int64)}
    result.update({f"weights.{name}": value for name, value in task.model.state_dict().items()})
    return result


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true"])
def test_PE14_same_numbers_as_lightning(make_job, run_mantissa, tmp_path, precision, clip):
    job = make_job(model="convnet", precision=precision, batches=31, accumulate_grad_batches=3, gradient_clip_val=clip,
                   optimizer="adamw", lr=1e-3)
    assert_same(run_mantissa(job), run_lightning(job, tmp_path))


@pytest.mark.parametrize("name", get_args(_PRECISION_INPUT_STR))
def test_every_name_of_lightnings_is_a_mode(name, tmp_path):
    """--print-config makes the mode, with its options."""
    done = subprocess.run([BUILD / "mantissa", "fit", "--device", "cpu", "--precision", name, "--print-config"], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 0 and f"precision: {name} " in done.stdout, done.stderr
