#!/usr/bin/env python3
"""What a training step costs while another process keeps one core busy, with and without keep_threads_apart().

Runs `mantissa fit` on digits, alone and beside a shell loop, both with MANTISSA_KEEP_THREADS_APART=0 and 1, in turn.
The times are those of the whole training, not of the median step: beside another process most steps are undisturbed,
and a few take a hundred times as long. All runs of a model must end with the same loss, to the last bit. Writes JSON
and prints milliseconds per step (medians of the rounds) and the median ratio to the quiet run of the same round.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STATES = {"quiet": (0, False), "quiet, apart": (1, False), "busy": (0, True), "busy, apart": (1, True)}


@contextlib.contextmanager
def busy_core():
    loop = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        time.sleep(0.2)
        yield
    finally:
        loop.kill()
        loop.wait()


def train(program, model, precision, steps, apart):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [program, "fit", "--device", "cpu", "--quiet", "--model", model, "--precision", precision, "--max-epochs", "-1",
             "--max-steps", str(steps), "--limit-val-batches", "0", "--no-enable-checkpointing", "--output",
             f"{folder}/run", "--json", "-"],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "MANTISSA_KEEP_THREADS_APART": str(apart)})
    result = json.loads(done.stdout)
    return 1e3 * result["seconds"] / steps, result["train_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()

    report = {"benchmark": "busy_machine", "machine": platform.processor() or platform.machine(),
              "cores": os.cpu_count(), "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"), "cases": {}}
    for model, precision, steps in (("convnet", "32-true", 1500), ("convnet", "bf16-mixed", 1500),
                                    ("resnet-tiny", "32-true", 200)):
        times, losses = {state: [] for state in STATES}, set()
        for _ in range(arguments.rounds):
            for state, (apart, is_busy) in STATES.items():
                with busy_core() if is_busy else contextlib.nullcontext():
                    milliseconds, loss = train(arguments.build / "mantissa", model, precision, steps, apart)
                times[state].append(milliseconds)
                losses.add(loss)
        if len(losses) != 1:
            raise SystemExit(f"{model} in {precision} has reached different losses, {losses}; no time counts")
        print(f"{model}, {precision}")
        for state, values in times.items():
            ratio = statistics.median(value / quiet for value, quiet in zip(values, times["quiet"]))
            print(f"  {state:13} {statistics.median(values):7.2f} ms  {ratio:5.2f}", flush=True)
        report["cases"][f"{model}, {precision}"] = times
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
