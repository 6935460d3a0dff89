"""What the recipes in configs/ reach. Each part trains its recipe on the `mantissa` program, prints a table, and ends with 1 if a
required number is missed.

    python3 benchmarks/quality.py mnist --data idx:FILE                     # accuracy in every mode: at least 0.985
    python3 benchmarks/quality.py fashion-mnist [--data idx:DIR]            # at least 0.915, within 0.005
    .deps/peers/bin/python benchmarks/quality.py shakespeare --data text:FILE

The last one needs PyTorch. It demands a validation loss below 1.66 nats a byte, and, after 500 steps in bf16-mixed, one within 1 % of
PyTorch's in float32, which starts from the same weights and sees the same batches.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIRED = {"mnist": 0.985, "fashion-mnist": 0.915}
SPREAD = {"mnist": math.inf, "fashion-mnist": 0.005}  # at most, between the best and the worst mode; one image of MNIST's is 0.001
OPTIONS = {"mnist": ["--val-fraction", "0.1"], "fashion-mnist": []}  # of 10,000 images, 9,000 train
MODES = ["32-true", "tf32-mixed", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "int8-training", "fp8-mixed",
         "transformer-engine", "transformer-engine-float16"]
# bf16 weights without master weights lose small updates unless they are rounded at random. MNIST reaches its figure all the same.
OPTIONS_OF_MODE = {"mnist": {}, "fashion-mnist": dict.fromkeys(["bf16-true", "transformer-engine"],
                                                               ["--optimizer", "fused-sgd", "--stochastic-rounding"])}


def fit(program, recipe, *options):
    """The JSON of a run, and its weights."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "result.json")
        command = [program, "fit", "--config", ROOT / "configs" / f"{recipe}.yaml", "--device", "cpu", "--quiet", "--json", result,
                   "--no-enable-checkpointing", "--logger", "none", "--output", f"{folder}/run", *options]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
        weights = pathlib.Path(folder, "run", "weights.safetensors")
        return json.loads(result.read_text()), weights.read_bytes() if weights.exists() else None


def images(program, recipe, data, precision):
    options = OPTIONS[recipe] + (["--data", data] if data else [])
    rows = []
    for mode in MODES if precision == "all" else [precision]:
        row, _ = fit(program, recipe, "--precision", mode, *options, *OPTIONS_OF_MODE[recipe].get(mode, []))
        rows.append(row)
        loss = math.nan if row["val_loss"] is None else row["val_loss"]  # JSON has no nan
        print(f"| {row['precision']} | {row['val_accuracy']:.4f} | {loss:.4f} | {row['step_ms']:.2f} |", flush=True)
    accuracies = [row["val_accuracy"] for row in rows]
    spread = max(accuracies) - min(accuracies)
    print(f"lowest {min(accuracies):.4f} (required {REQUIRED[recipe]}), spread {spread:.4f} (at most {SPREAD[recipe]})")
    return min(accuracies) >= REQUIRED[recipe] and spread <= SPREAD[recipe]


class Windows:
    """The batches of `mantissa fit` on a text, for PyTorch."""

    def __init__(self, text, context, batch_size, val_fraction=0.1, seed=1):
        import torch

        bytes_ = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        held = round(len(bytes_) * val_fraction)
        self.train, self.val = bytes_[:-held], bytes_[-held:]
        self.context, self.batch_size, self.seed = context, batch_size, seed

    def batches(self, steps):
        import torch

        epoch = 0
        while steps > 0:
            samples = len(self.train) - self.context
            generator = torch.Generator().manual_seed(self.seed + epoch)
            starts = torch.randint(samples, (max(1, samples // self.context),), generator=generator)
            for begin in starts.split(self.batch_size)[:steps]:
                yield self.windows(self.train, begin)
                steps -= 1
            epoch += 1

    def windows(self, symbols, begin):
        import torch

        at = begin[:, None] + torch.arange(self.context + 1)
        return symbols[at][:, :-1], symbols[at][:, 1:]

    def val_batches(self, size=32):
        import torch

        yield from (self.windows(self.val, part)
                    for part in torch.arange(0, len(self.val) - self.context, self.context).split(size))


def torch_loss(weights, text, steps, lr=1e-3, warmup=100):
    """The validation loss of PyTorch in float32, with the recipe's options."""
    import torch
    from safetensors.torch import load

    sys.path.insert(0, str(ROOT / "tests" / "parity"))
    import models

    model = models.make_model("gpt-tiny")
    model.load_state_dict(load(weights))
    data = Windows(text, context=128, batch_size=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / warmup if step < warmup else
                                                 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))))
    loss_of = lambda x, y: torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    for x, y in data.batches(steps):
        optimizer.zero_grad()
        loss_of(x, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        losses = [(loss_of(x, y).item(), len(x)) for x, y in data.val_batches()]
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)


def shakespeare(program, data):
    file = data.removeprefix("text:")
    _, weights = fit(program, "shakespeare", "--data", data, "--precision", "32-true", "--max-steps", "0", "--num-sanity-val-steps", "0",
                     "--limit-val-batches", "0")
    ours = {mode: fit(program, "shakespeare", "--data", data, "--precision", mode, "--max-steps", "500")[0]["val_loss"]
            for mode in ("bf16-mixed", "32-true")}
    theirs = torch_loss(weights, pathlib.Path(file).read_bytes(), 500)
    for mode, loss in ours.items():
        print(f"500 steps: {mode} {loss:.4f}, PyTorch in float32 {theirs:.4f}, relative difference {loss / theirs - 1:+.3%}", flush=True)
    whole, _ = fit(program, "shakespeare", "--data", data)
    print(f"{whole['steps']} steps in bf16-mixed: {whole['val_loss']:.4f} nats a byte (required below 1.66), {whole['seconds']:.0f} s")
    return abs(ours["bf16-mixed"] / theirs - 1) <= 0.01 and whole["val_loss"] < 1.66


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["mnist", "fashion-mnist", "shakespeare"])
    parser.add_argument("--build", default="build", help="the folder of the program")
    parser.add_argument("--data", help="the data in the form of mantissa fit; by default that of the recipe")
    parser.add_argument("--precision", default="all", help="the mode of the images' parts")
    given = parser.parse_args()
    program = pathlib.Path(given.build, "mantissa").resolve()
    if given.part == "shakespeare":
        if not given.data:
            parser.error("shakespeare needs --data text:FILE")
        sys.exit(0 if shakespeare(program, given.data) else 1)
    sys.exit(0 if images(program, given.part, given.data, given.precision) else 1)


if __name__ == "__main__":
    main()
