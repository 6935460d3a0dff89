"""GPT-2's tokens per second, compared with torch.compile and Lightning."""

from gpu_parts import throughput


def run(context):
    cases = [("gpt2", "bf16-mixed", False), ("gpt2", "16-mixed", False), ("gpt2", "32-true", True)]
    throughput.run(context, "tokens", cases)
