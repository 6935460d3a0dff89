"""Step time and peak memory of every mode: over float32, and over PyTorch's own torch.amp loop."""

from gpu_parts import duels, networks
from gpu_parts.context import Column

COLUMNS = [Column("model", 9), Column("precision", 10), Column("tf32", 4), Column("ours_ms", 9, ".2f", "ours ms"),
           Column("theirs_ms", 10, ".2f", "PyTorch ms"), Column("ratio", 5, ".2f"),
           Column("ratio_min", 5, ".2f", "from"), Column("ratio_max", 5, ".2f", "to"),
           Column("over_fp32", 9, ".2f", "over fp32"), Column("over_tf32", 9, ".2f", "over TF32"),
           Column("ours_peak_mib", 8, ".0f", "ours MiB"), Column("theirs_peak_mib", 11, ".0f", "PyTorch MiB"),
           Column("loss_difference", 9, ".1e", "loss diff"), Column("equal_bits", 4, title="bits")]

# The most important cases come first, each for all networks, in case the time does not suffice. TF32 applies
# to float32 products only. The 16-bit modes have none in these networks, so TF32 is off there.
CASES = [("32-true", False), ("32-true", True), ("bf16-mixed", False), ("16-mixed", False), ("bf16-true", False),
         ("16-true", False)]


def run(context):
    context.table(COLUMNS)
    float32_ms = {}
    with duels.Duels(context) as pairs:
        for precision, tf32 in CASES:
            for name in networks.FULL:
                identity = {"model": name, "precision": precision, "tf32": "on" if tf32 else "off"}
                row = context.case(identity, lambda: measure(pairs, name, precision, tf32, float32_ms))
                if row and precision == "32-true":
                    float32_ms[name, tf32] = row["ours_ms"]


def measure(pairs, name, precision, tf32, float32_ms):
    tolerance = pairs.context.size(duels.TOLERANCE["tf32" if tf32 else precision], 0)
    row = pairs.run(networks.job(pairs.context, name, precision, tf32), ours={"loop": "hand"}, theirs={"loop": "amp"},
                    tolerance=tolerance)
    for key, base in (("over_fp32", float32_ms.get((name, False))), ("over_tf32", float32_ms.get((name, True)))):
        if base:
            row[key] = base / row["ours_ms"]
    return row
