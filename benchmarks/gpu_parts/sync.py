"""How often a step in 16-mixed makes the host wait for the device, and a whole step in one CUDA graph."""

import json

from gpu_parts import duels, networks
from gpu_parts.context import Column, Failure, LeftOut

# (program, loop, optimizer). "recipe" uses Autocast and GradScaler by hand, "hand" the hooks of Precision.
LOOPS = [("mantissa", "recipe", "fused-adamw"), ("mantissa", "recipe", "fused-sgd"), ("mantissa", "recipe", "adamw"),
         ("mantissa", "hand", "fused-adamw"), ("mantissa", "hand", "fused-sgd"),
         ("mantissa", "trainer", "fused-adamw"), ("mantissa", "trainer", "fused-sgd"),
         ("PyTorch", "amp", "fused-adamw"), ("PyTorch", "amp", "adamw"),
         ("Lightning", "fabric", "adamw"), ("Lightning", "trainer", "adamw")]
STEPS = 20
OVERFLOWS = {"2": "inf", "3": "inf", "7": "nan", "12": "inf"}


def run(context):
    context.table([Column("program", 10), Column("loop", 8), Column("optimizer", 12),
                   Column("syncs_a_step", 12, ".2f", "syncs a step"), Column("expected", 8, ".0f"),
                   Column("ms", 8, ".2f"), Column("calls_a_step", 1, title="which")])
    with duels.Duels(context) as pairs:
        for program, loop, optimizer in LOOPS:
            identity = {"program": program, "loop": loop, "optimizer": optimizer}
            context.case(identity, lambda: count(pairs, program, loop, optimizer))
    context.table([Column("graph", 16), Column("steps", 5, ".0f"), Column("skipped_steps", 14),
                   Column("equal_scale", 11), Column("equal_weights", 13), Column("eager_ms", 8, ".2f", "eager ms"),
                   Column("replay_ms", 9, ".2f", "replay ms"), Column("ratio", 5, ".2f")])
    context.case({"graph": "of a whole step"}, lambda: replay(context))


def count(pairs, program, loop, optimizer):
    context = pairs.context
    if context.rehearsal and program == "Lightning":
        raise LeftOut("Lightning computes 16-mixed in bf16 on the CPU")
    job = pairs.whole({**networks.job(context, "gpt2", "16-mixed"), "loop": loop, "optimizer": optimizer,
                       "count_syncs": True, "deterministic_first": False})  # the first round is the warm-up
    side = pairs.our_side(job) if program == "mantissa" else pairs.their_side(job)
    library = context.program("libhost_syncs.so")
    with side.running(MANTISSA_HOST_SYNCS=str(library)):
        side.answer()  # the first round is the warm-up
        answer = side.round(STEPS)
    syncs = sum(answer["syncs"].values()) / STEPS
    row = {"syncs_a_step": syncs, "ms": answer["ms"],
           "calls_a_step": ", ".join(f"{name} {calls / STEPS:g}" for name, calls in answer["syncs"].items())}
    # On the CPU, libtorch's own AdamW kernel reads its step counter, and the Trainer reads its loss.
    loops, optimizers = context.size(full=(("recipe", "hand", "trainer"), ("fused-adamw", "fused-sgd")),
                                     small=(("recipe", "hand"), ("fused-sgd",)))
    if program == "mantissa" and loop in loops and optimizer in optimizers:
        row["expected"] = 0
        if syncs != 0:
            raise Failure(f"the host waits {syncs:g} times a step where 0 are allowed: {row['calls_a_step']}")
    return row


def replay(context):
    model = context.size(full={**networks.GPT2, "context": 256, "vocabulary": 256}, small=networks.SMALL_GPT2)
    job = {"device": context.device, "model": model, "batch": context.size(full=16, small=2), "steps": STEPS,
           "growth_interval": 4, "overflows": OVERFLOWS}
    with context.folder() as folder:
        file = folder / "job.json"
        file.write_text(json.dumps(job))
        row = json.loads(context.run_program("gpu_graph", file, timeout=180, CUBLAS_WORKSPACE_CONFIG=":4096:8"))
    if row["skipped"] != [int(step) for step in OVERFLOWS]:
        raise Failure(f"steps {row['skipped']} were skipped where {list(OVERFLOWS)} overflowed")
    if not (row["equal_scale"] and row["equal_weights"]):
        raise Failure(f"the replayed step is not the eager one: they differ first at step {row['differs_at']}")
    return {**row, "steps": STEPS, "skipped_steps": ", ".join(OVERFLOWS), "ratio": row["replay_ms"] / row["eager_ms"]}
