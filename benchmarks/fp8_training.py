"""Prints the table of fp8_training_bench and draws its figure. Needs matplotlib, which no other program of this project
uses:

    build/fp8_training_bench TEXT > runs.jsonl
    benchmarks/fp8_training.py runs.jsonl docs/fp8/training.svg
"""

import argparse
import collections
import json
import statistics
import sys

REFERENCE = "bf16-mixed"
# The largest distance of the mean loss from the reference's that counts as success.
LIMITS = {"DelayedScaling": 0.01, "Float8CurrentScaling": 0.01, "Float8BlockScaling": 0.01, "NVFP4BlockScaling": 0.015}


def read(path):
    """The runs of each recipe, by seed."""
    runs = collections.defaultdict(dict)
    with open(path) as file:
        for line in file:
            run = json.loads(line)
            runs[run["recipe"]][run["seed"]] = run
    if REFERENCE not in runs:
        sys.exit(f"{path} has no run in {REFERENCE}")
    return runs


def losses(runs, seeds):
    return [runs[seed]["held_out"] for seed in sorted(runs) if seed in seeds]


def table(runs):
    print(f"| recipe | held-out loss | lowest, highest | vs {REFERENCE}, mean of the seeds | lowest, highest |")
    print("| --- | --- | --- | --- | --- |")
    missed = []
    for name, its_runs in runs.items():
        mine = losses(its_runs, runs[REFERENCE])
        changes = [loss / reference - 1 for loss, reference in zip(mine, losses(runs[REFERENCE], its_runs))]
        change = statistics.mean(changes)
        print(f"| {name} | {statistics.mean(mine):.4f} | {min(mine):.4f}, {max(mine):.4f} | {change:+.2%} | "
              f"{min(changes):+.2%}, {max(changes):+.2%} |")
        if change > LIMITS.get(name, float("inf")):
            missed.append(name)
    return missed


def draw(runs, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "mantissa", "font.size": 9})
    from matplotlib import pyplot

    grey = "#808080"  # readable on white and on black
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for axis in (left, right):
        for side in axis.spines.values():
            side.set_color(grey)
        axis.tick_params(colors=grey)
        axis.patch.set_alpha(0)
    bar_names = [name for name in runs if name != "no scaling"]
    seeds = set(runs[REFERENCE])
    for place, name in enumerate(bar_names):
        changes = [100 * (runs[name][seed]["held_out"] / runs[REFERENCE][seed]["held_out"] - 1)
                   for seed in seeds & set(runs[name])]
        right.plot(changes, [place] * len(changes), "o", color="#4c8fd6", markersize=5, alpha=0.7)
        right.plot([statistics.mean(changes)], [place], "|", color="#d9822b", markersize=14, markeredgewidth=2)
    right.axvline(0, color=grey, linewidth=0.8)
    right.set_yticks(range(len(bar_names)), bar_names)
    right.invert_yaxis()
    right.set_xlabel(f"held-out loss over {REFERENCE} of the same seed, %", color=grey)
    for name, colour in ((REFERENCE, grey), ("DelayedScaling", "#4c8fd6"), ("NVFP4BlockScaling", "#3a9a5b"),
                         ("no scaling", "#d9822b")):
        if name not in runs:
            continue
        curves = [run["losses"] for run in runs[name].values()]
        every = next(iter(runs[name].values()))["steps"] // len(curves[0])
        mean = [statistics.mean(values) for values in zip(*curves)]
        left.plot([every * (i + 1) for i in range(len(mean))], mean, color=colour, label=name, linewidth=1.3)
    left.set_ylim(top=3.6)
    left.set_xlabel("step", color=grey)
    left.set_ylabel("training loss, nats a byte", color=grey)
    left.legend(frameon=False, labelcolor=grey)
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs")
    parser.add_argument("figure", nargs="?")
    given = parser.parse_args()
    runs = read(given.runs)
    missed = table(runs)
    if given.figure:
        draw(runs, given.figure)
    if missed:
        sys.exit(f"above the limit: {', '.join(missed)}")


if __name__ == "__main__":
    main()
