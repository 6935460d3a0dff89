"""The loss curves of the digits convnet and of gpt-tiny in every mode, our Trainer's against a plain PyTorch loop's.

loss_curves(context) adds a row for each. As a program it is one of them: curves.py JOB PROGRAM, whose JSON has what differs
from tests/parity/jobs.py's, trains on both sides with parity_runner as PROGRAM and prints how the two compare.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from gpu_parts.context import Column, Failure

COLUMNS = [Column("model", 9), Column("precision", 10), Column("steps", 5, "d"), Column("first_loss", 10, ".4f", "first loss"),
           Column("last_loss", 9, ".4f", "last loss"), Column("loss_difference", 10, ".1e", "difference"),
           Column("tolerance", 9, ".1e"), Column("equal_bits", 4, title="bits"), Column("skips", 5, "d"),
           Column("same_scale", 10, title="scale same"), Column("ok", 3)]
MODES = ["32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true"]
TOLERANCE = {"64-true": 1e-6, "32-true": 1e-2}
TOLERANCE_16_BIT = 5e-2


def loss_curves(context):
    context.table(COLUMNS)
    for precision in MODES:
        for model in ("convnet", "gpt-tiny"):
            context.case({"model": model, "precision": precision}, lambda: measure(context, model, precision))


def measure(context, model, precision):
    # fp16 weights and AdamW do not go together (docs/modes.md); momentum and decay are jobs.py's.
    optimizer = {"optimizer": "sgd", "lr": 0.02} if precision == "16-true" else {"optimizer": "fused-adamw", "lr": 1e-3}
    job = {"model": model, "precision": precision, "device": context.device, "deterministic": True, **optimizer,
           "batch_size": context.size(full=16, small=2) if model == "gpt-tiny" else 32,
           "batches": context.size(full=300, small=4 if model == "gpt-tiny" else 40)}
    # What cuBLAS asks for, to add in the same order every time.
    output = context.run_python("-m", "gpu_parts.curves", json.dumps(job), context.program("parity_runner"),
                                CUBLAS_WORKSPACE_CONFIG=":4096:8")
    row = json.loads(output.splitlines()[-1])
    tolerance = context.size(full=TOLERANCE.get(precision, TOLERANCE_16_BIT), small=0)
    if not (row["loss_difference"] <= tolerance and row["same_scale"]):
        raise Failure(f"the curves differ by {row['loss_difference']:.1e} where {tolerance:.1e} is allowed; "
                      f"{'the same' if row['same_scale'] else 'other'} scales and skips")
    return {**row, "tolerance": tolerance, "ok": True}


def train_both(overrides, program):
    import jobs
    import reference
    import torch
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory(prefix="mantissa-curves-") as folder:
        folder = pathlib.Path(folder)
        job = jobs.write_job(folder, **overrides)
        if job["model"] == "convnet":
            subprocess.run([program, "--digits", folder / "digits.safetensors"], check=True)
            digits = load_file(folder / "digits.safetensors")
            generator = torch.Generator().manual_seed(7)
            order = torch.randint(len(digits["target"]), (job["batches"], job["batch_size"]), generator=generator)
            save_file({**digits, "order": order}, job["data"])
        file = folder / "job.json"
        file.write_text(json.dumps(job))
        subprocess.run([program, file], check=True)
        ours, theirs = load_file(job["output"]), reference.run(job)
        a, b = ours["loss"].double(), theirs["loss"].double().cpu()
        # Relative to the loss, and to a tenth of the first one where little is left of it.
        difference = ((a - b).abs() / b.abs().clamp_min(0.1 * b[0])).max()
        return {"steps": len(b), "first_loss": float(b[0]), "last_loss": float(b[-1]), "loss_difference": float(difference),
                "equal_bits": torch.equal(a, b), "skips": int(theirs["skipped"].sum()),
                "same_scale": torch.equal(ours["scale"], theirs["scale"]) and torch.equal(ours["skipped"], theirs["skipped"])}


if __name__ == "__main__":
    print(json.dumps(train_both(json.loads(sys.argv[1]), sys.argv[2])))
