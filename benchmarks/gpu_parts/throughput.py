"""Tokens and images per second compared with torch.compile and Lightning: shared by the parts gpt2 and vision."""

from gpu_parts import duels, networks
from gpu_parts.context import Column, LeftOut

# Our loop, and the peer's loop that does the same work. The one that compiles is last, in case the time does
# not suffice.
LOOPS = [("trainer", "trainer"), ("hand", "fabric"), ("hand", "compile")]
# Images are also read from the host: the Trainer then moves them to the device while it computes.
LOOPS_FROM_HOST = {"images": [("trainer", "trainer")], "tokens": []}
PEER_NAMES = {"compile": "torch.compile", "trainer": "Lightning Trainer", "fabric": "Lightning Fabric"}


def run(context, unit, cases):
    """Runs a duel with each peer for each case (network, precision, tf32). `unit` is "tokens" or "images"."""
    context.table([Column("model", 9), Column("precision", 10), Column("tf32", 4), Column("batches", 7), Column("ours", 7),
                   Column("peer", 18), Column("ours_a_second", 11, ".0f", f"{unit}/s"),
                   Column("theirs_a_second", 11, ".0f", "peer's"), Column("ratio", 10, ".2f", "step ratio"),
                   Column("ratio_min", 5, ".2f", "from"), Column("ratio_max", 5, ".2f", "to"),
                   Column("loss_difference", 9, ".1e", "loss diff"), Column("equal_bits", 4, title="bits"),
                   Column("theirs_note", 1, title="the peer's")])
    with duels.Duels(context) as pairs:
        for name, precision, tf32 in cases:
            places = [("device", *loops) for loops in LOOPS] + [("host", *loops) for loops in LOOPS_FROM_HOST[unit]]
            for place, ours, theirs in places:
                identity = {"model": name, "precision": precision, "tf32": "on" if tf32 else "off", "batches": place,
                            "ours": ours, "peer": PEER_NAMES[theirs]}
                job = {**networks.job(context, name, precision, tf32), "batches_on": place}
                context.case(identity, lambda: measure(pairs, job, ours, theirs))


def measure(pairs, job, ours, theirs):
    context = pairs.context
    precision = job["precision"]
    if context.rehearsal and precision == "16-mixed" and theirs != "compile":
        raise LeftOut("Lightning computes 16-mixed in bf16 on the CPU")
    # The compiled code depends on this setting, and would be compiled again without it.
    job["deterministic_first"] = theirs != "compile"
    settings, note = {"loop": theirs}, ""
    if theirs == "compile" and context.rehearsal:
        # Inductor takes half a minute to compile on a small machine.
        settings["backend"], note = "aot_eager", "backend aot_eager, in place of inductor"
    if (theirs, precision) in {("trainer", "16-mixed"), ("trainer", "bf16-mixed"), ("fabric", "16-mixed")}:
        settings["optimizer"], note = "adamw", "AdamW not fused, which Lightning refuses to clip"
    is_same_arithmetic = context.rehearsal and theirs != "compile" and "optimizer" not in settings
    tolerance = 0 if is_same_arithmetic else duels.TOLERANCE["tf32" if job["tf32"] else precision]
    row = pairs.run(job, ours={"loop": ours}, theirs=settings, tolerance=tolerance)
    each = job["batch"] * job["model"].get("context", 1)
    return {**row, "ours_a_second": each / row["ours_ms"] * 1e3, "theirs_a_second": each / row["theirs_ms"] * 1e3,
            "theirs_note": note}
