#!/usr/bin/env python3
"""Samples a second of our DataLoader and of torch.utils.data.DataLoader, in the calling thread and with two workers.

Both read the same images in the same order and do the same work for each sample, in turn and in separate processes.
Order and pixels must be equal before a time counts. An epoch is timed after a warm-up epoch: PyTorch's worker processes
have started then (persistent_workers), whereas our threads start again in each epoch. Writes JSON and prints medians;
a ratio above 1 means that ours is faster.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIXELS = 3 * 32 * 32
WAIT = 500e-6
# The work for each sample and the samples in an epoch: enough for some tenths of a second.
CASES = [("none", 20000), ("wait", 600), ("augment", 6000)]


def run_theirs(work, workers, samples, batch_size):
    import time

    import torch
    from torch.utils.data import DataLoader, Dataset, Sampler

    torch.set_num_threads(1)

    class Images(Dataset):
        def __init__(self):
            numbers = torch.arange(samples * PIXELS)
            self.images = numbers.remainder(256).to(torch.uint8).view(samples, 3, 32, 32)
            self.targets = torch.arange(samples)

        def __len__(self):
            return samples

        def __getitem__(self, i):
            image = self.images[i]
            if work == "wait":
                time.sleep(WAIT)
            if work == "augment":
                image = image.to(torch.float32).div(255).sub(0.5).div(0.25).flip(2)
            return image, self.targets[i]

    class Order(Sampler):
        epoch = 0

        def __iter__(self):
            return iter(torch.randperm(samples, generator=torch.Generator().manual_seed(1 + self.epoch)).tolist())

        def __len__(self):
            return samples

    sampler = Order()
    loader = DataLoader(Images(), batch_size=batch_size, sampler=sampler, num_workers=workers,
                        persistent_workers=workers > 0)
    for sampler.epoch in range(2):
        start = time.perf_counter()
        batches = list(loader)
        seconds = time.perf_counter() - start
        order = 0
        for _, targets in batches:
            for target in targets.tolist():
                order = (order * 31 + target) % 1000003
        pixels = sum((data.to(torch.float64).flatten(1).sum(1) * targets).sum().item() for data, targets in batches)
    print(json.dumps({"samples_per_second": samples / seconds, "order": order, "pixels": pixels}))


def run(command):
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def measure(build, work, workers, samples, batch_size, rounds):
    words = [work, workers, samples, batch_size]
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(run([build / "data_loader_bench", *words]))
        theirs.append(run([sys.executable, __file__, "--theirs", *words]))
        for what in ("order", "pixels"):
            if ours[-1][what] != theirs[-1][what]:
                raise SystemExit(f"{work}, {workers} workers: {what} {ours[-1][what]} is not {theirs[-1][what]}; "
                                 "no time counts")
    ours, theirs = [[one["samples_per_second"] for one in side] for side in (ours, theirs)]
    ratios = [a / b for a, b in zip(ours, theirs)]
    return {"work": work, "workers": workers, "ours_samples_per_second": statistics.median(ours),
            "theirs_samples_per_second": statistics.median(theirs), "ratio": statistics.median(ratios),
            "ratio_min": min(ratios), "ratio_max": max(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--theirs", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.theirs:
        work, *numbers = arguments.theirs
        return run_theirs(work, *map(int, numbers))

    import torch

    rows = []
    print(f"{'work':<8} {'workers':>7} {'ours /s':>10} {'PyTorch /s':>10} {'ratio':>6}  spread")
    for work, samples in CASES:
        for workers in (0, 2):
            row = measure(arguments.build, work, workers, samples, arguments.batch_size, arguments.rounds)
            rows.append(row)
            print(f"{work:<8} {workers:>7} {row['ours_samples_per_second']:>10.0f} "
                  f"{row['theirs_samples_per_second']:>10.0f} {row['ratio']:>6.2f}  "
                  f"{row['ratio_min']:.2f}–{row['ratio_max']:.2f}", flush=True)
    file = arguments.json or arguments.build / "bench_data_loader.json"
    file.write_text(json.dumps({"benchmark": "data_loader", "machine": platform.processor() or platform.machine(),
                                "cores": os.cpu_count(), "torch": torch.__version__, "rounds": arguments.rounds,
                                "rows": rows}, indent=2) + "\n")
    print(f"written: {file}")


if __name__ == "__main__":
    main()
