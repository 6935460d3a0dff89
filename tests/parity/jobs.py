"""Jobs for parity_runner.cpp and reference.py, with the files that they name. benchmarks/ uses them, too."""

import reference
import torch
from safetensors.torch import save_file


def make_data(model, batches, batch_size, image_size):
    """Makes inputs that both sides read from one file: noise with a class-dependent pattern, or random bytes."""
    generator = torch.Generator().manual_seed(7)
    samples = 4 * batch_size
    if model in ("gpt-tiny", "llama-tiny"):
        text = torch.randint(0, 64, (samples, 129), generator=generator)
        data, target = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    else:
        target = torch.randint(0, 10, (samples,), generator=generator)
        patterns = torch.randn(10, 1, image_size, image_size, generator=generator)
        data = patterns[target] + 0.5 * torch.randn(samples, 1, image_size, image_size, generator=generator)
    order = torch.stack([torch.randperm(samples, generator=generator)[:batch_size] for _ in range(batches)])
    return {"data": data, "target": target, "order": order}


def write_job(folder, **overrides):
    """Writes weights and data into `folder` and returns a complete job; keyword arguments override its values."""
    job = {"model": "mlp", "precision": "32-true", "optimizer": "sgd", "lr": 0.05, "momentum": 0.9,
           "weight_decay": 0.01, "accumulate_grad_batches": 1, "gradient_clip_val": 0.0, "threads": 2,
           "image_size": 8, "batches": 200, "batch_size": 16, "seed": 0,
           "weights": str(folder / "weights.safetensors"), "data": str(folder / "data.safetensors"),
           "output": str(folder / "output.safetensors")}
    job.update(overrides)
    torch.manual_seed(job["seed"])
    save_file(reference.make_model(job).state_dict(), job["weights"])
    save_file(make_data(job["model"], job["batches"], job["batch_size"], job["image_size"]), job["data"])
    return job
