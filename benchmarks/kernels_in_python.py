"""What the benchmarks share that compare kernels in one Python process: their arguments and the file of their results."""

import argparse
import json
import os
import pathlib
import platform
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Limits ours and everything that PyTorch calls to the instructions of an AVX2 CPU.
ORDINARY = {"MANTISSA_MAX_ISA": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def is_ordinary():
    """Says whether this process is limited to AVX2."""
    return ORDINARY.items() <= os.environ.items()


def start(description, rounds, stock_rounds):
    """Reads the arguments and loads our kernels; returns the arguments. `rounds` and `stock_rounds` are the defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--stock-rounds", type=int, default=stock_rounds)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ordinary-cpu", action="store_true", help="use AVX2 alone, in every library")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.ordinary_cpu and not is_ordinary():
        # Libraries read these variables when they are loaded.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ORDINARY)

    import torch

    torch.ops.load_library(arguments.build / "libmantissa_kernels.so")
    torch.set_num_threads(arguments.threads)
    arguments.stock_rounds = min(arguments.rounds, arguments.stock_rounds)
    return arguments


def write(arguments, benchmark, name, **results):
    """Writes the results with what they were measured on, to --json or else to bench_NAME.json in the build."""
    import torch

    file = arguments.json or arguments.build / f"bench_{name}{'_ordinary_cpu' if arguments.ordinary_cpu else ''}.json"
    file.write_text(json.dumps({"benchmark": benchmark, "machine": platform.processor() or platform.machine(),
                                "tier": torch.ops.mantissa_kernels.tier(),
                                "capability": torch.backends.cpu.get_cpu_capability(), "threads": arguments.threads,
                                "torch": torch.__version__, **results}, indent=2) + "\n")
    print(f"written: {file}")
