#!/usr/bin/env python3
"""Time of a training step in Python: autocast with our kernels and with PyTorch's own, over float32.

In one process a step of each runs in turn: float32, ours, PyTorch's own (only in the first rounds where that is slow).
The order changes from round to round, because a step leaves its caches and freed memory to the next. Our losses must
follow PyTorch's before a time counts. Writes JSON and prints a table of median ratios to the float32 step of the
same round; a ratio below 1 is faster than float32.
"""

import statistics
import sys
import time

import kernels_in_python

sys.path.insert(0, str(kernels_in_python.ROOT / "tests" / "python"))

SLOW = 3  # times float32
TOLERANCE = 2**-5  # relative to a loss: a few products per step, each rounded to 2^-8 in bf16, over a few steps


def transformer(torch, models):
    tokens = torch.randint(0, 256, (4, 129), generator=torch.Generator().manual_seed(1))
    return models.Transformer(layers=4, width=256, heads=4, vocabulary=256), tokens[:, :-1], tokens[:, 1:]


def resnet18(torch, models):
    generator = torch.Generator().manual_seed(1)
    return models.Resnet18(classes=10), torch.randn(8, 3, 32, 32, generator=generator), \
        torch.randint(0, 10, (8,), generator=generator)


class Training:
    """One model, its optimizer and the losses so far. The same `make` gives the same start."""

    def __init__(self, make, dtype, ours):
        import models
        import torch

        torch.manual_seed(0)
        self.model, self.data, self.target = make(torch, models)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=dtype == torch.float16)
        self.dtype, self.ours, self.losses = dtype, ours, []

    def step(self):
        """Trains one step; returns its time in seconds."""
        import torch
        import torch.nn.functional as F

        (torch.ops.mantissa_kernels.enable if self.ours else torch.ops.mantissa_kernels.disable)()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(self.data)
        loss = F.cross_entropy(logits.flatten(0, -2).float(), self.target.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(loss.item())
        return time.perf_counter() - begin


def measure(make, dtype, rounds, stock_rounds):
    import torch

    runs = {"float32": Training(make, torch.float32, False), "ours": Training(make, dtype, True),
            "stock": Training(make, dtype, False)}
    first = {name: run.step() for name, run in runs.items()}
    is_slow = first["stock"] > SLOW * first["float32"]
    seconds = {name: [] for name in runs}
    names = list(runs)
    for i in range(rounds):
        for name in names[i % 3:] + names[:i % 3]:
            if name != "stock" or not is_slow or i < stock_rounds:
                seconds[name].append(runs[name].step())
    for ours, stock in zip(runs["ours"].losses, runs["stock"].losses):
        if not abs(ours - stock) <= TOLERANCE * stock:
            raise SystemExit(f"{make.__name__} in {dtype}: a loss of {ours}, PyTorch's is {stock}; no time counts")

    def ratios(name):
        return [a / b for a, b in zip(seconds[name], seconds["float32"])]

    return {"model": make.__name__, "dtype": str(dtype).removeprefix("torch."),
            **{f"{name}_ms": statistics.median(values) * 1e3 for name, values in seconds.items()},
            "ours_ratio": statistics.median(ratios("ours")), "ours_ratio_min": min(ratios("ours")),
            "ours_ratio_max": max(ratios("ours")), "stock_ratio": statistics.median(ratios("stock"))}


def main():
    arguments = kernels_in_python.start(__doc__.splitlines()[0], rounds=15, stock_rounds=3)

    import torch

    if not torch.ops.mantissa_kernels.enable():
        raise SystemExit("MANTISSA_CPU_KERNELS=0: there is nothing to compare; unset it")
    tier = torch.ops.mantissa_kernels.tier()
    rows = []
    print(f"tier {tier}, {arguments.threads} threads; ratios to the float32 step")
    print(f"{'model':<12} {'dtype':<9} {'float32 ms':>10} {'ours ms':>9} {'stock ms':>9} {'ours':>6}  {'spread':<11} stock")
    for make in (transformer, resnet18):
        for dtype in (torch.bfloat16, torch.float16):
            row = measure(make, dtype, arguments.rounds, arguments.stock_rounds)
            rows.append(row)
            spread = f"{row['ours_ratio_min']:.2f}–{row['ours_ratio_max']:.2f}"
            print(f"{row['model']:<12} {row['dtype']:<9} {row['float32_ms']:>10.1f} {row['ours_ms']:>9.1f} "
                  f"{row['stock_ms']:>9.1f} {row['ours_ratio']:>6.2f}  {spread:<11} {row['stock_ratio']:.2f}", flush=True)
    kernels_in_python.write(arguments, "python_models", "python", rounds=arguments.rounds, rows=rows)


if __name__ == "__main__":
    main()
