"""The loss curves of the digits convnet and of gpt-tiny in every mode, our Trainer's against a plain PyTorch loop's.

loss_curves(context) adds a row for each. As a program it makes one of them: `curves.py JOB PROGRAM`, where JOB is the
JSON of what differs from the job in tests/parity/jobs.py, and PROGRAM is parity_runner. It prints how the two compare.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from gpu_parts import duels
from gpu_parts.context import Column, Failure

COLUMNS = [Column("model", 9), Column("precision", 10), Column("steps", 5, "d"),
           Column("first_loss", 10, ".4f", "first loss"), Column("last_loss", 9, ".4f", "last loss"),
           Column("early_difference", 10, ".1e", "early diff"), Column("early_tolerance", 7, ".1e", "allowed"),
           Column("loss_difference", 10, ".1e", "whole diff"), Column("tolerance", 7, ".1e", "allowed"),
           Column("equal_bits", 4, title="bits"), Column("skips", 5, "d"), Column("same_scale", 10, title="scale same"),
           Column("ok", 3)]
MODES = ["32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true"]

# Both sides request libtorch's deterministic algorithms, so equal bits are expected. If an operation has no
# deterministic algorithm, the difference from another order of summation grows from step to step. PyTorch
# differs from itself on a CPU (the convnet, on one thread and on two, or with the samples of each batch in
# reverse order) by at most 1.1e-7 in the first 20 steps of 32-true and 1.1e-4 in those of a 16-bit mode, and
# by 0.015 and 0.16 within 300 steps. The bounds of the first steps are therefore those of a timed pair, and
# the bounds of the whole curve are somewhat larger.
EARLY_STEPS = 20
EARLY_TOLERANCE = {**duels.TOLERANCE, "64-true": 2**-40}
TOLERANCE = {**dict.fromkeys(MODES, 0.25), "32-true": 0.05, "64-true": 1e-9}


def loss_curves(context):
    context.table(COLUMNS)
    for precision in MODES:
        for model in ("convnet", "gpt-tiny"):
            context.case({"model": model, "precision": precision}, lambda: measure(context, model, precision))


def measure(context, model, precision):
    # AdamW does not work with fp16 weights (docs/modes.md). Momentum and decay are as in jobs.py.
    adamw, sgd = {"optimizer": "fused-adamw", "lr": 1e-3}, {"optimizer": "sgd", "lr": 0.02}
    optimizer = sgd if precision == "16-true" else adamw
    job = {"model": model, "precision": precision, "device": context.device, "deterministic": True, **optimizer,
           "batch_size": context.size(full=16, small=2) if model == "gpt-tiny" else 32,
           "batches": context.size(full=300, small=4 if model == "gpt-tiny" else 40)}
    # cuBLAS needs this to add in the same order every time.
    output = context.run_python("-m", "gpu_parts.curves", json.dumps(job), context.program("parity_runner"),
                                timeout=90, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    row = json.loads(output.splitlines()[-1])
    early, whole = context.size(full=(EARLY_TOLERANCE[precision], TOLERANCE[precision]), small=(0, 0))
    if not (row["early_difference"] <= early and row["loss_difference"] <= whole and row["same_scale"]):
        raise Failure(f"the losses differ by {row['early_difference']:.1e} in the first {EARLY_STEPS} steps "
                      f"({early:.1e} is allowed) and by {row['loss_difference']:.1e} in all ({whole:.1e}); "
                      "scale and skips " + ("are the same" if row["same_scale"] else "differ, too"))
    return {**row, "early_tolerance": early, "tolerance": whole, "ok": True}


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
        ours = load_file(job["output"])
        theirs = {key: value.cpu() for key, value in reference.run(job).items()}
        a, b = ours["loss"].double(), theirs["loss"].double()
        # Relative to the loss, or to a tenth of the first loss once the loss is smaller.
        difference = (a - b).abs() / b.abs().clamp_min(0.1 * b[0])
        same = {key: torch.equal(ours[key], theirs[key]) for key in ("loss", "scale", "skipped")}
        return {"steps": len(b), "first_loss": float(b[0]), "last_loss": float(b[-1]),
                "early_difference": float(difference[:EARLY_STEPS].max()), "loss_difference": float(difference.max()),
                "equal_bits": same["loss"], "same_scale": same["scale"] and same["skipped"],
                "skips": int(theirs["skipped"].sum())}



if __name__ == "__main__":
    print(json.dumps(train_both(json.loads(sys.argv[1]), sys.argv[2])))
