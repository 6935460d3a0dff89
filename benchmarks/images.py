#!/usr/bin/env python3
"""Images a second of our ImageDataset and of torchvision's ImageFolder with a DataLoader.

Both sides read the same folder of generated JPEG images of 500 x 375 pixels, take random crops of 224, flip half of them and
normalize, with as many workers. Batches of the evaluation (resize, centre crop) must have the same bits before a time counts.
"scaled" decodes at a smaller size where that is enough, "exact" never does. "pixels" and "JPEG" read packed files, whose shorter
side has 256 pixels. Both sides run in turn, in processes of their own; "per core" is with one worker. Writes JSON and prints
medians; a ratio above 1 means that ours is faster.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

IMAGES, CLASSES, SIZE, BATCH_SIZE = 512, 4, 224, 64


def photograph(seed):
    """Smooth shapes with some noise, as a camera makes them."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (26, 34, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = np.clip(image + rng.integers(-12, 13, image.shape, dtype=np.int16), 0, 255)
    return Image.fromarray(noisy.astype(np.uint8))


def make_images(folder):
    for i in range(IMAGES):
        path = folder / f"class{i % CLASSES}" / f"{i:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(i).save(path, quality=90)


def normalized(*changes):
    from torchvision import transforms

    return transforms.Compose([*changes, transforms.ToTensor(),
                               transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])


def check_theirs(folder, size):
    import torch
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    size, total, labels = int(size), 0, 0
    images = ImageFolder(folder, normalized(transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)))
    for data, target in torch.utils.data.DataLoader(images, batch_size=BATCH_SIZE):
        total += data.view(torch.int32).sum(dtype=torch.int64).item()
        labels = labels * 31 % 1000003 + target.sum().item()
    print(json.dumps({"sum": total, "labels": labels}))


def train_theirs(folder, size, workers):
    import time

    import torch
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    torch.set_num_threads(1)
    images = ImageFolder(folder, normalized(transforms.RandomResizedCrop(int(size)), transforms.RandomHorizontalFlip()))
    loader = torch.utils.data.DataLoader(images, batch_size=BATCH_SIZE, shuffle=True, num_workers=int(workers),
                                         persistent_workers=True)
    for _ in range(2):
        start = time.perf_counter()
        means = [data[:, 0, 0].mean().item() for data, _ in loader]
        seconds = time.perf_counter() - start
    print(json.dumps({"rate": len(images) / seconds, "mean": statistics.mean(means)}))


def run(command):
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout)


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("check", "train"):
        return {"check": check_theirs, "train": train_theirs}[sys.argv[1]](*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--rounds", default=3, type=int)
    options = parser.parse_args()
    bench, this, results = options.build / "images_bench", [sys.executable, __file__], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "images"
        make_images(folder)
        if run([bench, "check", folder, SIZE]) != run([*this, "check", folder, SIZE]):
            sys.exit("images.py: the two sides evaluate different pixels")
        packs = {"pixels": pathlib.Path(name) / "pixels.pack", "JPEG": pathlib.Path(name) / "jpeg.pack"}
        for kind, pack in packs.items():
            subprocess.run([options.build / "mantissa", "pack", folder, "-o", pack, "--quiet", "--shorter-side", "256",
                            *(["--quality", "90"] if kind == "JPEG" else [])], check=True)
        cases = [(f"folder, {how}", folder, how) for how in ("exact", "scaled")]
        cases += [(f"packed {kind}", pack, "scaled") for kind, pack in packs.items()]
        print(f"{'case':16} {'workers':>8} {'ours/s':>8} {'theirs/s':>9} {'ratio':>7}")
        for workers in (1, 2):
            rows = {case: [] for case, *_ in cases}
            for _ in range(options.rounds):
                theirs = run([*this, "train", folder, SIZE, workers])
                for case, path, how in cases:
                    ours = run([bench, "train", path, SIZE, workers, how])
                    if abs(ours["mean"] - theirs["mean"]) > 0.1:
                        sys.exit(f"images.py: {case}: the crops have other colours")
                    rows[case].append((ours["rate"], theirs["rate"]))
            for case, pairs in rows.items():
                result = {"case": case, "workers": workers, "ours": statistics.median(a for a, _ in pairs),
                          "theirs": statistics.median(b for _, b in pairs),
                          "ratio": statistics.median(a / b for a, b in pairs)}
                print(f"{case:16} {workers:8} {result['ours']:8.0f} {result['theirs']:9.0f} {result['ratio']:7.2f}", flush=True)
                results.append(result)
    (options.build / "bench_images.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
