"""What weights in 4 and 8 bits cost a small GPT in quality and memory. It trains gpt-tiny (4 layers, 256 wide) in float32
on the first half of a text and quantizes it to every mode. LoRA then trains the nf4-dq model on the second half, and
int8-training trains from the beginning like the float32 run. All runs use the `mantissa` program."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

MODES = ("nf4", "nf4-dq", "fp4", "fp4-dq", "int8")


class Mantissa:
    def __init__(self, program, folder):
        self.program, self.folder = str(pathlib.Path(program).resolve()), folder

    def __call__(self, *arguments):
        """The JSON result of a command."""
        command = [self.program, *arguments, "--quiet", "--json", "-", "--device", "cpu"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return json.loads(done.stdout[:done.stdout.rindex("}") + 1])

    def fit(self, output, text, steps, *arguments):
        result = self("fit", "--data", f"text:{text}", "--model", "gpt-tiny", "--max-steps", str(steps), "--no-enable-checkpointing",
                      "--output", output, *arguments)
        print(f"  trained {output}: {result['step_ms']:.0f} ms a step, {mebibytes(result)} MiB at its peak", flush=True)
        return result

    def loss(self, run, text, *arguments):
        return self("validate", run, "--data", f"text:{text}", *arguments)["val_loss"]


def mebibytes(result):
    return result["peak_memory_bytes"] >> 20


def halves(text, folder):
    content = pathlib.Path(text).read_bytes()
    middle = len(content) // 2
    (folder / "first.txt").write_bytes(content[:middle])
    (folder / "second.txt").write_bytes(content[middle:])


def report(checks):
    for what, value, limit in checks:
        print(f"{'ok ' if value <= limit else 'NOT'} {what}: {value:+.2%} (limit {limit:+.0%})")
    return all(value <= limit for _, value, limit in checks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build", help="the folder of the program")
    parser.add_argument("--text", required=True, help="for example Karpathy's tiny Shakespeare")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lora-steps", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        halves(given.text, folder)
        mantissa = Mantissa(pathlib.Path(given.build) / "mantissa", folder)
        base = mantissa.fit("base", "first.txt", given.steps, "--precision", "32-true")
        checks = []
        print(f"{'first half, quantized':24} val loss {base['val_loss']:.4f} in 32-true")
        for mode in MODES:
            loss = mantissa.loss("base", "first.txt", "--precision", mode)
            change = loss / base["val_loss"] - 1
            print(f"  {mode:22} val loss {loss:.4f}, {change:+.2%}")
            if mode == "nf4-dq":
                checks.append(("nf4-dq after float32 training", change, 0.03))
        float_loss = mantissa.loss("base", "second.txt", "--precision", "32-true")
        quantized_loss = mantissa.loss("base", "second.txt", "--precision", "nf4-dq")
        tuned = mantissa.fit("tuned", "second.txt", given.lora_steps, "--precision", "nf4-dq", "--weights", "base/weights.safetensors",
                             "--lora", "r=16,alpha=32")
        print(f"second half: val loss {float_loss:.4f} in 32-true, {quantized_loss:.4f} in nf4-dq, {tuned['val_loss']:.4f} after "
              f"{given.lora_steps} steps of LoRA on nf4-dq")
        checks.append(("LoRA on nf4-dq over the float32 model, second half", tuned["val_loss"] / float_loss - 1, 0.0))
        int8 = mantissa.fit("int8-training", "first.txt", given.steps, "--precision", "int8-training")
        print(f"int8-training: val loss {int8['val_loss']:.4f}, 32-true {base['val_loss']:.4f}")
        checks.append(("int8-training over 32-true", int8["val_loss"] / base["val_loss"] - 1, 0.02))
        return 0 if report(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
