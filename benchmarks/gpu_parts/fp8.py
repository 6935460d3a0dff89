"""FP8 products beside those in bf16, with the casts that they need, and what a run chooses by these times."""

import json

from gpu_parts.context import Column, Failure

RECIPES = ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling"]
WIDTHS = [1024, 2048, 4096, 8192, 16384]
# Casts to E4M3 and E5M2 move the results of normal numbers by 3.5 to 6.3 %. What is more than a tenth is no rounding.
LARGEST_FROM_BF16 = 0.1
# Native sums of forward have fewer digits than float32, and results are rounded to bf16.
LARGEST_FROM_EMULATION = 2 ** -6
TIMES = [Column("products", 9), Column("fp8_ms", 9, ".3f", "fp8 ms"), Column("bf16_ms", 9, ".3f", "bf16 ms"),
         Column("speedup", 7, ".2f")]


def run(context):
    checked = [*TIMES, Column("from_bf16", 10, ".4f", "from bf16")]
    context.table([Column("linear", 22), Column("width", 6), Column("tokens", 7), *checked,
                   Column("from_emulation", 14, ".6f", "from emulation")])
    for width in context.size(full=WIDTHS, small=[32, 72]):
        for recipe in RECIPES:
            tokens = context.size(full=min(2 * width, 16384), small=40)
            identity = {"linear": recipe, "width": width, "tokens": tokens}
            context.case(identity, lambda: measure(context, "linear", recipe, width=width, tokens=tokens))
    context.table([Column("layer", 22), Column("width", 6), Column("tokens", 7), *checked])
    for width in context.size(full=[1024, 4096], small=[32]):
        for recipe in RECIPES:
            sizes = context.size(full={"tokens": 2048, "batch": 4, "heads": width // 128, "layers": 2},
                                 small={"tokens": 8, "batch": 2, "heads": 2, "layers": 1})
            identity = {"layer": recipe, "width": width, "tokens": sizes["tokens"] * sizes["batch"]}
            context.case(identity, lambda: measure(context, "layer", recipe, width=width, **sizes))
    context.table([Column("choice", 22), Column("width", 6), Column("tokens", 7), *TIMES, Column("chosen", 6)])
    for width in context.size(full=WIDTHS, small=[32]):
        for tokens in context.size(full=[1024, 16384], small=[16]):
            identity = {"choice": "DelayedScaling", "width": width, "tokens": tokens}
            context.case(identity, lambda: measure(context, "choice", "DelayedScaling", width=width, tokens=tokens))


def measure(context, what, recipe, **sizes):
    job = {"device": context.device, "what": what, "recipe": recipe, **sizes}
    with context.folder() as folder:
        file = folder / "job.json"
        file.write_text(json.dumps(job))
        # What was measured before must not decide what is measured here.
        row = json.loads(context.run_program("gpu_fp8", file, timeout=120, MANTISSA_CACHE_DIR=""))
    row["speedup"] = row["bf16_ms"] / row["fp8_ms"]
    if row.get("from_bf16", 0) > LARGEST_FROM_BF16:
        raise Failure(f"the results differ from those in bf16 by {row['from_bf16']:.3f}; at most {LARGEST_FROM_BF16} is rounding",
                      row=row)
    if row.get("from_emulation", 0) > LARGEST_FROM_EMULATION:
        raise Failure(f"the results differ from the emulation by {row['from_emulation']:.4f}; at most "
                      f"{LARGEST_FROM_EMULATION:.4f} is rounding", row=row)
    return row
