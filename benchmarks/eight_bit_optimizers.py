#!/usr/bin/env python3
"""A step with Adam8bit over a step of the fused float32 Adam: bitsandbytes, the same with our kernels, and ours in C++.

One process steps in turn, on one parameter: PyTorch's fused float32 Adam, and bitsandbytes's Adam8bit with its own kernels
(only in the first rounds, because they are slow) and with ours. Then `optim_bench` compares Mantissa's Adam8bit with the same
Adam. Weights must agree before a time counts. Prints median ratios to the float32 step of the same round, and writes JSON; a
ratio below 1 is faster than float32.
"""

import json
import statistics
import subprocess
import time

import kernels_in_python

SIZES = [1 << 20, 1 << 22, 1 << 24]
MOST_APART = 1e-4  # the mean distance of weights after the first steps, a tenth of the learning rate


def optimizer_of(torch, make, elements, **options):
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(elements, generator=generator) * 0.1).requires_grad_()
    weight.grad = torch.randn(elements, generator=generator) * 0.01
    return make([weight], lr=1e-3, **options), weight


def seconds(optimizer):
    begin = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - begin


def measure(elements, rounds, stock_rounds):
    import bitsandbytes
    import torch

    use_ours = torch.ops.mantissa_kernels.bitsandbytes_kernels
    wide, wide_weight = optimizer_of(torch, torch.optim.Adam, elements, fused=True)
    runs = {name: optimizer_of(torch, bitsandbytes.optim.Adam8bit, elements) for name in ("bitsandbytes", "ours")}
    for _ in range(2):
        wide.step()
        for name, (optimizer, _) in runs.items():
            use_ours(name == "ours")
            optimizer.step()
    for name, (_, weight) in runs.items():
        if not (apart := (wide_weight - weight).abs().mean()) < MOST_APART:
            raise SystemExit(f"{elements} elements, {name}: the weights are {apart:.2g} from float32's; no time counts")
    times, ratios = [], {name: [] for name in runs}
    for i in range(rounds):
        times.append(seconds(wide))
        for name, (optimizer, _) in runs.items():
            if name == "ours" or i < stock_rounds:
                use_ours(name == "ours")
                ratios[name].append(seconds(optimizer) / times[-1])
    use_ours(False)
    return {"elements": elements, "float32_ms": statistics.median(times) * 1e3,
            **{name: statistics.median(each) for name, each in ratios.items()}}


def cpp_ratios(build, file):
    """Returns the ratios of Mantissa's own Adam8bit, by elements."""
    subprocess.run([build / "optim_bench", "--benchmark_filter=compare/Adam8bit/", f"--benchmark_out={file}",
                    "--benchmark_out_format=json"], capture_output=True, text=True, check=True)
    ratios = {}
    for result in json.loads(file.read_text())["benchmarks"]:
        if result.get("error_occurred"):
            raise SystemExit(f"optim_bench {result['name']}: {result['error_message']}")
        ratios[int(result["name"].split("elements:")[1].split("/")[0])] = result["ratio"]
    return ratios


def main():
    arguments = kernels_in_python.start(__doc__.splitlines()[0], rounds=21, stock_rounds=3)

    import bitsandbytes
    import torch

    print(f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}, tier {torch.ops.mantissa_kernels.tier()}, "
          f"{arguments.threads} threads; ratios to the fused float32 Adam")
    print(f"{'elements':>10} {'float32 ms':>10} {'bitsandbytes':>12} {'with ours':>9} {'ours, C++':>9}")
    rows = [measure(elements, arguments.rounds, arguments.stock_rounds) for elements in SIZES]
    ours = cpp_ratios(arguments.build, arguments.build / "bench_optimizers_cpp.json")
    for row in rows:
        row["ours_cpp"] = ours[row["elements"]]
        print(f"{row['elements']:>10} {row['float32_ms']:>10.2f} {row['bitsandbytes']:>12.1f} {row['ours']:>9.2f} "
              f"{row['ours_cpp']:>9.2f}")
    kernels_in_python.write(arguments, "eight_bit_optimizers", "optimizers", bitsandbytes=bitsandbytes.__version__, rows=rows)


if __name__ == "__main__":
    main()
