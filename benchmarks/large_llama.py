"""A Llama of 1.2 billion parameters on a small machine, by the command line alone.

Makes random weights in the form of Hugging Face's Llama-3.2-1B (bf16, in shards), quantizes them to nf4-dq, trains adapters for some
steps with activation checkpointing and a chunked loss, and generates text. Prints the peak memory of each command, the time of a
step and the tokens a second. Ends with an error if a loss is not finite, does not fall, or if the training takes more than 3 GiB.

    .deps/peers/bin/python benchmarks/large_llama.py --build build [--folder FOLDER] [--layers 16] [--steps 4]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

GIB = 1 << 30


def config(layers: int) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    }


def shapes(c: dict) -> dict[str, tuple[int, ...]]:
    wide, inner, grouped = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    all_shapes = {"model.embed_tokens.weight": (c["vocab_size"], wide), "model.norm.weight": (wide,)}
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        all_shapes |= {
            layer + "input_layernorm.weight": (wide,),
            layer + "post_attention_layernorm.weight": (wide,),
            layer + "self_attn.q_proj.weight": (wide, wide),
            layer + "self_attn.k_proj.weight": (grouped, wide),
            layer + "self_attn.v_proj.weight": (grouped, wide),
            layer + "self_attn.o_proj.weight": (wide, wide),
            layer + "mlp.gate_proj.weight": (inner, wide),
            layer + "mlp.up_proj.weight": (inner, wide),
            layer + "mlp.down_proj.weight": (wide, inner),
        }
    return all_shapes


def write_model(folder: Path, layers: int) -> int:
    """Writes config.json and random weights, a shard per 500 MB. Returns the number of weights."""
    c = config(layers)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(c, indent=2))
    torch.manual_seed(0)
    wanted, shard, bytes_, shards, where = shapes(c), {}, 0, [], {}

    def flush() -> None:
        nonlocal shard, bytes_
        name = f"model-{len(shards) + 1:05}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        where.update(dict.fromkeys(shard, name))
        shards.append(name)
        shard, bytes_ = {}, 0

    for name, shape in wanted.items():
        norm = len(shape) == 1
        shard[name] = torch.ones(shape, dtype=torch.bfloat16) if norm else (torch.randn(shape) * 0.02).bfloat16()
        bytes_ += shard[name].nbytes
        if bytes_ > 500_000_000:
            flush()
    if shard:
        flush()
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(torch.Size(shape).numel() for shape in wanted.values())


def run(words: list[str]) -> tuple[str, int]:
    """Returns what a command writes to standard output, and its peak memory in bytes."""
    print("$", " ".join(["mantissa", *words[1:]]), flush=True)
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(words, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            sys.exit(f"{words[1]} failed with status {os.waitstatus_to_exitcode(status)}")
        out.seek(0)
        peak = usage.ru_maxrss * 1024
        print(f"  peak memory {peak / GIB:.2f} GiB", flush=True)
        return out.read(), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--folder", help="work here, and keep the files")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    mantissa = str(Path(arguments.build).resolve() / "mantissa")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        model, packed, trained = folder / "llama", folder / "llama-nf4-dq", folder / "run"
        count = write_model(model, arguments.layers)
        print(f"{count / 1e9:.3f} billion weights, {2 * count / GIB:.2f} GiB in bf16, {4 * count / GIB:.2f} GiB in float32")
        text = folder / "text.txt"
        text.write_text("".join(f"line {i * 7919 % 1000} of a text\n" for i in range(2000)))

        run([mantissa, "convert", str(model), str(packed), "--to", "nf4-dq"])
        fit = [mantissa, "fit", "--model", f"hf:{model}", "--weights", str(packed), "--precision", "nf4-dq"]
        fit += ["--lora", "r=16,alpha=32", "--activation-checkpointing", "--loss-chunk", "64", "--data", f"text:{text}"]
        fit += ["--batch-size", "1", "--overfit-batches", "1", "--max-steps", str(arguments.steps), "--lr", "1e-3"]
        fit += ["--lr-schedule", "constant", "--limit-val-batches", "0", "--no-enable-checkpointing", "--log-every-n-steps", "1"]
        fit += ["--quiet", "--json", "-", "--output", str(trained)]
        out, peak = run(fit)
        result = json.loads(out)
        print(f"  {result['step_ms'] / 1000:.1f} s a step of 128 tokens, last loss {result['train_loss']:.4f}")
        if not result["train_loss"] < 14:
            sys.exit("the loss is not finite, or far above that of random weights")
        if peak > 3 * GIB:
            sys.exit(f"training took {peak / GIB:.2f} GiB, more than 3")
        tokens = ["--prompt-tokens", "128000,791,6864", "--max-new-tokens", "32", "--temperature", "0", "--json", "-"]
        out, _ = run([mantissa, "generate", str(trained), "--quiet", *tokens])
        generated = json.loads(out)
        print("  " + json.dumps({k: v for k, v in generated.items() if k != "tokens"}))


if __name__ == "__main__":
    main()
