"""The peer of parity_runner.cpp: the same job as a plain PyTorch loop."""

import contextlib
import pathlib
import re

import models
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

TRUE_DTYPE = {"64-true": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16}
AUTOCAST_DTYPE = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def make_model(job):
    return models.make_model(job["model"], height=job["image_size"], width=job["image_size"])


def cross_entropy(logits, target):
    """Averages over every position, in float32 if the logits are 16-bit, as ClassificationTask does."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


def make_optimizer(job, parameters):
    if job["optimizer"] == "fused-adamw":
        return torch.optim.AdamW(parameters, lr=job["lr"], weight_decay=job["weight_decay"], fused=True)
    if job["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, lr=job["lr"], momentum=job["momentum"], weight_decay=job["weight_decay"])
    return torch.optim.AdamW(parameters, lr=job["lr"], weight_decay=job["weight_decay"])


def run(job, on_step=lambda: None):
    """Returns {"loss": [batches], "scale": [batches], "skipped": [batches], "weights.<name>": ...}.

    `on_step` is called before the first step and after each step.
    """
    torch.set_num_threads(job["threads"])
    torch.use_deterministic_algorithms(job.get("deterministic", False), warn_only=True)
    precision, device = job["precision"], torch.device(job.get("device", "cpu"))
    model = make_model(job)
    model.load_state_dict(load_file(job["weights"]))
    model.to(device)
    dtype = TRUE_DTYPE.get(precision)
    if dtype:
        model.to(dtype)
    channels_last = job.get("channels_last", False)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(job, model.parameters())
    scaler = None
    if precision == "16-mixed":
        scaler = torch.amp.GradScaler(device.type, **job.get("scaler", {}))
    tensors = load_file(job["data"])
    losses, scales, skipped = [], [], []
    window = job["accumulate_grad_batches"]
    on_step()
    for step, indices in enumerate(tensors["order"]):
        data, target = tensors["data"][indices].to(device), tensors["target"][indices].to(device)
        if dtype and data.is_floating_point():
            data = data.to(dtype)
        if channels_last:
            data = data.contiguous(memory_format=torch.channels_last)
        region = contextlib.nullcontext()
        if precision in AUTOCAST_DTYPE:
            region = torch.autocast(device.type, dtype=AUTOCAST_DTYPE[precision])
        with region:
            loss = cross_entropy(model(data), target)
        if step % window == 0:
            optimizer.zero_grad()
        scaled = loss / window if window > 1 else loss
        (scaler.scale(scaled) if scaler else scaled).backward()
        was_skipped = False
        if (step + 1) % window == 0 or step + 1 == len(tensors["order"]):
            if scaler and not job["optimizer"].startswith("fused-"):
                scaler.unscale_(optimizer)
            if job["gradient_clip_val"] > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), job["gradient_clip_val"])
            if scaler:
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                was_skipped = scaler.get_scale() < before
            else:
                optimizer.step()
        losses.append(loss.detach())
        scales.append(scaler.get_scale() if scaler else 0.0)
        skipped.append(int(was_skipped))
        on_step()
    result = {"loss": torch.stack(losses), "scale": torch.tensor(scales, dtype=torch.float64),
              "skipped": torch.tensor(skipped)}
    result.update({f"weights.{name}": value for name, value in model.state_dict().items()})
    return result


def load_checkpoint(folder):
    """Returns step, weights and state, with the reader that docs/checkpoints.md prints."""
    text = (pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    names = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    return names["load"](folder)
