#!/usr/bin/env python3
"""Time of a layer with 4- and 8-bit weights over the float32 layer: bitsandbytes, the same with our kernels, and ours in C++.

One process runs in turn, in changing order: PyTorch's float32 layer, bitsandbytes's layer with its own kernels (only in
the first rounds where these are slow), and bitsandbytes's layer with ours. Then `quant_bench` compares Mantissa's own product
or look-up in an embedding with libtorch's float32 one. Results must agree before a time counts. Prints median ratios to the float32 layer of the
same round, and writes JSON; a ratio below 1 is faster than float32.
"""

import functools
import json
import statistics
import subprocess
import time

import kernels_in_python

SECONDS_OF_A_ROUND = 4e-3
SLOW = 3  # times float32
TOLERANCE = 3e-2  # relative to the largest result: int8 also quantizes the input, and bitsandbytes computes in bfloat16
VOCABULARY = 32000  # rows of an embedding
# kind of quant_bench, rows of the input (look-ups in an embedding), width, dtype of the input. float32 inputs are float32's in bitsandbytes, too, except for int8.
CASES = [("nf4", 1, 1024, "float32"), ("nf4", 1, 4096, "float32"), ("nf4", 32, 1024, "float32"),
         ("nf4", 512, 1024, "float32"), ("nf4-bf16", 512, 1024, "bfloat16"), ("nf4-gradient", 512, 1024, "float32"),
         ("int8-fp16", 512, 1024, "float16"),
         ("nf4-embedding", 1, 1024, "float32"), ("nf4-embedding", 64, 1024, "float32"), ("nf4-embedding", 4096, 1024, "float32")]


def layer_of(bnb, torch, kind, width, dtype, in_evaluation):
    """Returns bitsandbytes's layer, without a bias.

    In evaluation its 4-bit layer has a faster layout on a CPU with AVX512-BF16, which mantissa_kernels does not let it make.
    Its int8 layer multiplies in 8 bits only in evaluation.
    """
    torch.manual_seed(1)
    if kind.startswith("int8"):
        layer = bnb.nn.Linear8bitLt(width, width, bias=False, has_fp16_weights=False, threshold=0.0)
    else:
        layer = bnb.nn.Linear4bit(width, width, bias=False, quant_type="nf4", compress_statistics=False, compute_dtype=dtype)
    if kernels_in_python.is_ordinary():
        layer.support_avx512bf16_for_cpu = False  # bitsandbytes asks the CPU itself
    return layer.to("cpu").train(not in_evaluation).requires_grad_(False)


def look_ups_of(bnb, torch, count, width):
    """Returns look-ups of rows in float32, and in bitsandbytes's layer for either kernels, as functions."""
    torch.manual_seed(1)
    packed = bnb.nn.EmbeddingNF4(VOCABULARY, width).to("cpu").requires_grad_(False)
    dense = torch.nn.Embedding.from_pretrained(bnb.functional.dequantize_4bit(packed.weight.data, packed.weight.quant_state))
    indices = torch.randint(VOCABULARY, (count,))
    return {"float32": lambda: dense(indices), "bitsandbytes": lambda: packed(indices), "ours": lambda: packed(indices)}


def runs_of(bnb, torch, kind, rows, width, dtype):
    """Returns the product in float32, in bitsandbytes's layer and in the same layer for our kernels, as functions."""
    if kind == "nf4-embedding":
        return look_ups_of(bnb, torch, rows, width)
    is_int8 = kind.startswith("int8")
    theirs, ours = (layer_of(bnb, torch, kind, width, dtype, is_int8 or in_evaluation) for in_evaluation in (True, False))
    x = torch.randn(rows, width).to(dtype)
    wide_x, gradient = x.float(), torch.randn(rows, width)
    if is_int8:
        dense = ours.weight.float() * ours.weight.SCB.view(-1, 1) / 127
    else:
        dense = bnb.functional.dequantize_4bit(ours.weight.data, ours.weight.quant_state).float()
    if kind != "nf4-gradient":
        return {"float32": lambda: wide_x @ dense.t(), "bitsandbytes": lambda: theirs(x), "ours": lambda: ours(x)}
    # The forward product is not timed: its result is kept, and its backward pass runs again and again.
    x = x.requires_grad_()
    y = ours(x)
    backward = functools.partial(torch.autograd.grad, y, x, gradient, retain_graph=True)
    return {"float32": lambda: gradient @ dense, "bitsandbytes": lambda: backward()[0], "ours": lambda: backward()[0]}


def seconds(run, repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


def measure(case, rounds, stock_rounds):
    import bitsandbytes as bnb
    import torch

    kind, rows, width, dtype = case
    use_ours = torch.ops.mantissa_kernels.bitsandbytes_kernels
    use_ours(False)
    with torch.set_grad_enabled(kind == "nf4-gradient"):
        runs = runs_of(bnb, torch, kind, rows, width, getattr(torch, dtype))
        repeats = {}
        exact = runs["float32"]()
        for name, run in runs.items():
            use_ours(name == "ours")
            error = (run().float() - exact).abs().max() / exact.abs().max()
            if not error <= TOLERANCE:
                raise SystemExit(f"{kind}, {rows}x{width}, {name}: the result is off by {error:.2g}; no time counts")
            repeats[name] = max(1, int(SECONDS_OF_A_ROUND / seconds(run, 2)))
        times = {name: [] for name in runs}
        is_slow = repeats["bitsandbytes"] * SLOW < repeats["float32"]
        names = list(runs)
        for i in range(rounds):
            for name in names[i % 3:] + names[:i % 3]:
                if name != "bitsandbytes" or not is_slow or i < stock_rounds:
                    use_ours(name == "ours")
                    times[name].append(seconds(runs[name], repeats[name]))
    use_ours(False)
    row = {"kind": kind, "rows": rows, "width": width, "float32_us": statistics.median(times["float32"]) * 1e6}
    for name in names[1:]:
        row[name] = statistics.median(a / b for a, b in zip(times[name], times["float32"]))
    return row


def cpp_ratios(build, cases, file):
    """Returns the ratios of Mantissa's own products, by the names of quant_bench."""
    names = [f"{kind}/{rows}x{VOCABULARY if kind.endswith('embedding') else width}x{width}" for kind, rows, width, _ in cases]
    run = subprocess.run([build / "quant_bench", f"--benchmark_filter=^({'|'.join(names)})/", f"--benchmark_out={file}",
                          "--benchmark_out_format=json"], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"quant_bench ended with {run.returncode}: {run.stderr}")
    ratios = {}
    for result in json.loads(file.read_text())["benchmarks"]:
        if result.get("error_occurred"):
            raise SystemExit(f"quant_bench {result['name']}: {result['error_message']}")
        ratios["/".join(result["name"].split("/")[:2])] = result["fp32"]
    return [ratios[name] for name in names]


def main():
    arguments = kernels_in_python.start(__doc__.splitlines()[0], rounds=31, stock_rounds=5)

    import bitsandbytes
    import torch

    tier = torch.ops.mantissa_kernels.tier()
    print(f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}, tier {tier}, {arguments.threads} threads; "
          "ratios to the float32 layer")
    print(f"{'layer':<13} {'rows':>4} {'width':>5} {'float32 us':>10} {'bitsandbytes':>12} {'with ours':>9} {'ours, C++':>9}")
    rows = [measure(case, arguments.rounds, arguments.stock_rounds) for case in CASES]
    for row, ratio in zip(rows, cpp_ratios(arguments.build, CASES, arguments.build / "bench_low_bit_cpp.json")):
        row["ours_cpp"] = ratio
        print(f"{row['kind']:<13} {row['rows']:>4} {row['width']:>5} {row['float32_us']:>10.0f} {row['bitsandbytes']:>12.2f} "
              f"{row['ours']:>9.2f} {ratio:>9.2f}")
    kernels_in_python.write(arguments, "low_bit_products", "low_bit", bitsandbytes=bitsandbytes.__version__, rows=rows)


if __name__ == "__main__":
    main()
