#!/usr/bin/env python3
"""What a Trainer costs a step above the same loop written by hand: ours over libtorch, Lightning's over PyTorch.

An mlp trains on digits in batches of 32 that lie in memory, with one thread and without loggers, progress bars and
checkpoints (`with csv`: with our CSVLogger). The loops of each language train in turn from the same weights, and their
weights must be equal at the end. Writes JSON and prints microseconds per step: the median of the rounds, and of the
differences of each round.
"""

import argparse
import json
import logging
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_theirs(rounds):
    import lightning
    import torch

    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.rand(32, 64, generator=generator), torch.randint(10, (32,), generator=generator))
               for _ in range(560)]

    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
                                   torch.nn.Linear(128, 10))

    def optimizer_of(net):
        return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, foreach=False)

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()
            self.optimizer = optimizer_of(self.net)

        def training_step(self, batch, _):
            data, target = batch
            return torch.nn.functional.cross_entropy(self.net(data), target)

        def configure_optimizers(self):
            return self.optimizer

    by_hand, task = model(), Task()
    optimizer = optimizer_of(by_hand)
    loader = torch.utils.data.DataLoader(batches, batch_size=None, shuffle=False)

    def hand():
        for data, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(by_hand(data), target).backward()
            optimizer.step()

    def trainer():
        lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
                          enable_checkpointing=False, enable_model_summary=False).fit(task, loader)

    times = {"hand": [], "trainer": []}
    for turn in range(rounds + 1):  # the first one is the warm-up
        for name, loop in (("hand", hand), ("trainer", trainer)):
            start = time.perf_counter()
            loop()
            if turn > 0:
                times[name].append((time.perf_counter() - start) / len(batches) * 1e6)
    for expected, got in zip(by_hand.parameters(), task.net.parameters()):
        if not torch.equal(expected, got):
            raise SystemExit("Lightning and the loop by hand have trained different weights; no time counts")
    print(json.dumps(times))


def run(command):
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout.splitlines()[-1])


def above(times, name):
    """Quartiles over the rounds: the variation between single rounds is larger than the difference to measure."""
    return statistics.quantiles([a - b for a, b in zip(times[name], times["hand"])], n=4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.theirs:
        return run_theirs(arguments.rounds)

    import lightning
    import torch

    ours = run([arguments.build / "trainer_cost_bench", arguments.rounds])
    theirs = run([sys.executable, __file__, "--theirs", "--rounds", arguments.rounds])
    rows = {"mantissa": (ours, "trainer"), "mantissa with csv": (ours, "trainer_csv"), "lightning": (theirs, "trainer")}
    print(f"{'':<18} {'by hand':>9} {'Trainer':>9} {'above':>9} {'quartiles':>15}  microseconds a step")
    for name, (times, which) in rows.items():
        low, middle, high = above(times, which)
        print(f"{name:<18} {statistics.median(times['hand']):>9.1f} {statistics.median(times[which]):>9.1f} "
              f"{middle:>9.1f} {f'{low:.1f} to {high:.1f}':>15}")
    ratio = above(theirs, "trainer")[1] / above(ours, "trainer")[1]
    print(f"Lightning's cost over ours: {ratio:.0f}")
    file = arguments.json or arguments.build / "bench_trainer_cost.json"
    file.write_text(json.dumps({"benchmark": "trainer_cost", "machine": platform.processor() or platform.machine(),
                                "cores": os.cpu_count(), "torch": torch.__version__, "lightning": lightning.__version__,
                                "microseconds_a_step": {"ours": ours, "theirs": theirs},
                                "above_quartiles": {name: above(*row) for name, row in rows.items()},
                                "lightning_over_ours": ratio}, indent=2) + "\n")
    print(f"written: {file}")


if __name__ == "__main__":
    main()
