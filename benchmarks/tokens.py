#!/usr/bin/env python3
"""Tokens a second of our TokenDataset and of Python loops over np.memmap, and bytes a second of our tokenizers and of the
tokenizers package.

Both sides read the same windows of one file of random ids, in the same order, and encode the same texts: the pages of docs/,
with a tokenizer of 8,000 tokens that is trained on them. What they read and encode must be equal before a time counts. Both
sides run in turn, in processes of their own, with one thread. "opened once" keeps the memmap open; "nanoGPT" opens it for
each batch, as nanoGPT's train.py does. Writes JSON and prints medians; a ratio above 1 means that ours is faster.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTEXT, BATCH_SIZE, BATCHES, TOKENS = 1024, 12, 400, 50_000_000
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def mixed(total, value):
    return (total * 31 + value) % 1000003


def read_theirs(file, how, batches):
    import time

    import numpy as np
    import torch

    torch.set_num_threads(1)
    batches, data = int(batches), np.memmap(file, dtype=np.uint16, mode="r")
    for epoch in range(2):
        generator = torch.Generator().manual_seed(1 + epoch)
        starts = torch.randint(len(data) - CONTEXT, (batches * BATCH_SIZE,), generator=generator).split(BATCH_SIZE)
        total, seconds = 0, 0.0
        for indices in starts:
            start = time.perf_counter()
            if how == "nanoGPT":
                data = np.memmap(file, dtype=np.uint16, mode="r")
            x = torch.stack([torch.from_numpy(data[i:i + CONTEXT].astype(np.int64)) for i in indices])
            y = torch.stack([torch.from_numpy(data[i + 1:i + 1 + CONTEXT].astype(np.int64)) for i in indices])
            seconds += time.perf_counter() - start
            total = mixed(mixed(total, x.sum().item()), y.sum().item())
    print(json.dumps({"rate": batches * BATCH_SIZE * CONTEXT / seconds, "sum": total}))


def encode_theirs(tokenizer, texts):
    import time

    from tokenizers import Tokenizer

    tokenizer, texts = Tokenizer.from_file(tokenizer), json.loads(pathlib.Path(texts).read_text())
    start = time.perf_counter()
    encoded = [tokenizer.encode(text).ids for text in texts]
    seconds, total = time.perf_counter() - start, 0
    for ids in encoded:
        for one in ids:
            total = mixed(total, one)
    print(json.dumps({"rate": sum(len(text.encode()) for text in texts) / seconds, "sum": total}))


def make_inputs(folder):
    import numpy as np
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    np.random.default_rng(0).integers(0, 50257, TOKENS, dtype=np.uint16).tofile(folder / "tokens.bin")
    texts = [page.read_text() for page in sorted((ROOT / "docs").rglob("*.md"))] * 3
    (folder / "texts.json").write_text(json.dumps(texts))
    llama3 = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    for name, cuts in [("GPT-2", pre_tokenizers.ByteLevel(add_prefix_space=False)), ("Llama 3", llama3)]:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = cuts, decoders.ByteLevel()
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=8000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        tokenizer.save(str(folder / f"{name}.json"))


def run(command):
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True,
                          env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout)


def measure(case, ours, theirs, rounds):
    rows = []
    for _ in range(rounds):
        pair = run(ours), run(theirs)
        if pair[0]["sum"] != pair[1]["sum"]:
            sys.exit(f"tokens.py: {case}: the two sides read different tokens")
        rows.append((pair[0]["rate"], pair[1]["rate"]))
    result = {"case": case, "ours": statistics.median(a for a, _ in rows), "theirs": statistics.median(b for _, b in rows),
              "ratio": statistics.median(a / b for a, b in rows)}
    print(f"{case:24} {result['ours'] / 1e6:10.1f} {result['theirs'] / 1e6:10.1f} {result['ratio']:8.1f}", flush=True)
    return result


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("read", "encode"):
        return {"read": read_theirs, "encode": encode_theirs}[sys.argv[1]](*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--rounds", default=5, type=int)
    options = parser.parse_args()
    bench, this, results = options.build / "tokens_bench", [sys.executable, __file__], []
    print(f"{'case':24} {'ours M/s':>10} {'theirs M/s':>10} {'ratio':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_inputs(folder)
        for how in ("opened once", "nanoGPT"):
            file = folder / "tokens.bin"
            results.append(measure(f"tokens, {how}", [bench, "read", file, CONTEXT, BATCH_SIZE, BATCHES],
                                   [*this, "read", file, how, BATCHES], options.rounds))
        for kind in ("GPT-2", "Llama 3"):
            files = folder / f"{kind}.json", folder / "texts.json"
            results.append(measure(f"bytes, {kind}", [bench, "encode", *files], [*this, "encode", *files], options.rounds))
    (options.build / "bench_tokens.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
