#!/usr/bin/env python3
"""Time of a training step: our Trainer against a plain PyTorch loop, per model and precision.

Both run the same job (tests/parity) in turn, in separate processes. The losses must be equal bit for bit before a time
counts. Writes JSON and prints a table of medians; a ratio below 1 means that ours is faster.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "parity"))

# Equal losses require libtorch's own 16-bit products on both sides. These are emulated in fp16: such a step
# of the larger models takes seconds on either side, and says nothing about the loop. precision_step_bench
# measures our kernels.
CASES = [("mlp", 32, 8, 300, ["32-true", "bf16-mixed", "16-mixed"]),
         ("convnet", 32, 8, 200, ["32-true", "bf16-mixed", "16-mixed"]),
         ("resnet-tiny", 32, 28, 20, ["32-true", "bf16-mixed"]),
         ("gpt-tiny", 4, 8, 10, ["32-true", "bf16-mixed"])]


def time_theirs(job_file):
    """Runs in a child process: prints the loop's median step in ms, and leaves its losses beside the job."""
    import time

    import reference
    from safetensors.torch import save_file

    job = json.loads(pathlib.Path(job_file).read_text())
    times = []
    result = reference.run(job, on_step=lambda: times.append(time.perf_counter()))
    save_file({"loss": result["loss"]}, job["output"] + ".theirs")
    print(statistics.median(b - a for a, b in zip(times, times[1:])) * 1e3)


def measure(build, model, precision, batch_size, image_size, batches, rounds, threads):
    import jobs
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        job = jobs.write_job(pathlib.Path(folder), model=model, precision=precision, batches=batches,
                             batch_size=batch_size, image_size=image_size, optimizer="adamw", lr=1e-3,
                             threads=threads)
        file = pathlib.Path(folder) / "job.json"
        file.write_text(json.dumps(job))
        ours, theirs = [], []
        for _ in range(rounds):
            subprocess.run([build / "parity_runner", file], check=True)
            with safe_open(job["output"], "pt") as output:
                ours.append(float(output.metadata()["step_ms"]))
            done = subprocess.run([sys.executable, __file__, "--time-theirs", file], check=True, capture_output=True,
                                  text=True)
            theirs.append(float(done.stdout))
        equal = torch.equal(load_file(job["output"])["loss"], load_file(job["output"] + ".theirs")["loss"])
        if not equal:
            raise SystemExit(f"{model} in {precision}: the two programs computed different losses; no time counts")
    ratios = [a / b for a, b in zip(ours, theirs)]
    return {"model": model, "precision": precision, "ours_ms": statistics.median(ours),
            "theirs_ms": statistics.median(theirs), "ratio": statistics.median(ratios), "ratio_min": min(ratios),
            "ratio_max": max(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--time-theirs", metavar="JOB", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.time_theirs:
        return time_theirs(arguments.time_theirs)

    import torch

    rows = []
    print(f"{'model':<12} {'precision':<11} {'ours ms':>9} {'PyTorch ms':>11} {'ratio':>6}  spread")
    for model, batch_size, image_size, batches, precisions in CASES:
        for precision in precisions:
            row = measure(arguments.build, model, precision, batch_size, image_size, batches, arguments.rounds,
                          arguments.threads)
            rows.append(row)
            print(f"{model:<12} {precision:<11} {row['ours_ms']:>9.3f} {row['theirs_ms']:>11.3f} {row['ratio']:>6.2f}"
                  f"  {row['ratio_min']:.2f}–{row['ratio_max']:.2f}", flush=True)
    file = arguments.json or arguments.build / "bench.json"
    file.write_text(json.dumps({"benchmark": "train_step", "machine": platform.processor() or platform.machine(),
                                "capability": torch.backends.cpu.get_cpu_capability(), "threads": arguments.threads,
                                "torch": torch.__version__, "rounds": arguments.rounds, "rows": rows}, indent=2) + "\n")
    print(f"written: {file}")


if __name__ == "__main__":
    main()
