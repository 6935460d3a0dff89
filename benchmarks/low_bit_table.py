#!/usr/bin/env python3
"""The closing table of 4- and 8-bit weights and optimizers: what low_bit_products.py and eight_bit_optimizers.py have
measured on this machine, natively and limited to AVX2, beside what is required of it. Ratios to float32; below 1 is faster."""

import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = [("bitsandbytes", "bitsandbytes"), ("ours", "with ours"), ("ours_cpp", "ours, C++")]

# What is measured, the rows that it is found in, and what is required and aimed at.
ROWS = [
    ("nf4, 1 row, 1024 wide", ("low_bit", {"kind": "nf4", "rows": 1, "width": 1024}), 0.50, 0.36),
    ("nf4, 1 row, 4096 wide", ("low_bit", {"kind": "nf4", "rows": 1, "width": 4096}), 0.30, 0.22),
    ("nf4, 32 rows", ("low_bit", {"kind": "nf4", "rows": 32, "width": 1024}), 0.85, 0.70),
    ("nf4, 512 rows", ("low_bit", {"kind": "nf4", "rows": 512, "width": 1024}), 0.95, 0.80),
    ("nf4 in bfloat16, 512 rows", ("low_bit", {"kind": "nf4-bf16", "rows": 512, "width": 1024}), None, None),
    ("nf4, gradient of the input, 512 rows", ("low_bit", {"kind": "nf4-gradient", "rows": 512, "width": 1024}), 1.0, 0.9),
    ("int8, 512 rows, with its quantization", ("low_bit", {"kind": "int8-fp16", "rows": 512, "width": 1024}), 0.70, 0.50),
    ("Adam8bit, 4.2 million weights", ("optimizers", {"elements": 1 << 22}), 2.0, 0.8),
    ("Adam8bit, 16.8 million weights", ("optimizers", {"elements": 1 << 24}), 1.5, 0.8),
]


def result_of(build, name, suffix):
    file = build / f"bench_{name}{suffix}.json"
    return json.loads(file.read_text()) if file.exists() else None


def print_table(build, title, suffix):
    results = {name: result_of(build, name, suffix) for name in ("low_bit", "optimizers")}
    if not any(results.values()):
        return
    about = next(result for result in results.values() if result)
    print(f"\n{title}: tier {about['tier']}, {about['threads']} threads, torch {about['torch']}, "
          f"bitsandbytes {about['bitsandbytes']}")
    print(f"{'':<38}" + "".join(f"{column:>14}" for _, column in COLUMNS) + f"{'required':>10}{'aim':>7}")
    for name, (part, wanted), required, aim in ROWS:
        rows = [row for row in (results[part] or {"rows": []})["rows"] if wanted.items() <= row.items()]
        values = [f"{rows[0][key]:>14.2f}" if rows else f"{'-':>14}" for key, _ in COLUMNS]
        limits = f"{'-':>10}{'-':>7}" if required is None else f"{required:>10.2f}{aim:>7.2f}"
        missed = "  missed" if rows and required is not None and rows[0]["ours_cpp"] > required else ""
        print(f"{name:<38}" + "".join(values) + limits + missed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    build = parser.parse_args().build
    print_table(build, "this CPU", "")
    print_table(build, "the same CPU, limited to AVX2", "_ordinary_cpu")


if __name__ == "__main__":
    main()
