"""A Vision Transformer trained with activation checkpointing: ours against PyTorch's own script (torch.amp) and Lightning, in one run.

Each mode trains the same weights on the same batch, in turn and each in a process of its own. The losses must agree within the mode's
rounding before a time counts. Prints the time of a step, the peak memory and their ratios; a ratio below 1 means that ours is faster, or
smaller. By default it is ViT-L/16 at 224 (304 million weights).

    .deps/peers/bin/python benchmarks/vit_training.py --build build [--batch 2] [--steps 3] [--modes 32-true,bf16-mixed] [--tiny]
"""
import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

MODES = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")
LARGE = {"layers": 24, "width": 1024, "heads": 16, "mlp": 4096, "image": 224}
TINY = {"layers": 3, "width": 64, "heads": 4, "mlp": 128, "image": 32}
# The difference of the losses, relative to the loss, or to 0.1 where the batch is learned by heart.
# AdamW's steps of equal size make of a rounding of a small gradient a step in another direction.
TOLERANCE = {"32-true": 1e-3, "bf16-mixed": 2e-2, "16-mixed": 1e-2, "bf16-true": 3e-2}


def make_model(sizes):
    import torch
    import torchvision

    class Checkpointed(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)

    model = torchvision.models.VisionTransformer(image_size=sizes["image"], patch_size=16, num_layers=sizes["layers"],
                                                 num_heads=sizes["heads"], hidden_dim=sizes["width"],
                                                 mlp_dim=sizes["mlp"], num_classes=1000)
    return model, Checkpointed


def load(sizes, weights):
    import torch
    from safetensors.torch import load_file

    with torch.device("meta"):
        model, checkpointed = make_model(sizes)
    model.load_state_dict(load_file(weights), assign=True)
    for name, layer in list(model.encoder.layers.named_children()):
        setattr(model.encoder.layers, name, checkpointed(layer))
    return model


def train_loop(model, mode, images, labels, steps):
    """PyTorch's own script: autocast, and a GradScaler for fp16."""
    import torch

    if mode == "bf16-true":
        model, images = model.to(torch.bfloat16), images.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(mode)
    scaler = torch.amp.GradScaler("cpu", enabled=mode == "16-mixed")
    losses, times = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(model(images).float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        times.append((time.perf_counter() - begin) * 1e3)
    return losses, times


def train_lightning(model, mode, images, labels, steps):
    import lightning
    import torch

    losses, times = [], []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def on_train_batch_start(self, *_):
            self.begin = time.perf_counter()

        def training_step(self, batch, _):
            loss = torch.nn.functional.cross_entropy(self.model(batch[0]).float(), batch[1])
            losses.append(loss.item())
            return loss

        def on_train_batch_end(self, *_):
            times.append((time.perf_counter() - self.begin) * 1e3)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    trainer = lightning.Trainer(precision=mode, accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), torch.utils.data.DataLoader([(images, labels)] * steps, batch_size=None))
    return losses, times


def theirs(arguments):
    """In a process of its own: leaves what ours leaves."""
    import torch
    from safetensors.torch import load_file, save_file

    kind, weights, out, mode, steps, tiny = arguments
    batch = load_file(out + ".batch")
    train = train_loop if kind == "torch" else train_lightning
    losses, times = train(load(TINY if tiny == "1" else LARGE, weights), mode, batch["images"], batch["labels"], int(steps))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    save_file({"loss": torch.tensor(losses), "step_ms": torch.tensor(times), "peak_mib": torch.tensor([peak])}, out)


def result_in(file):
    """A copy: the tensors of load_file() change with the file, which the next program writes."""
    from safetensors.torch import load_file

    return {name: tensor.clone() for name, tensor in load_file(file).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="the first one is not counted")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--without-lightning", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a miniature, to try the program")
    given = parser.parse_args()

    import torch
    from safetensors.torch import save_file

    sizes = TINY if given.tiny else LARGE
    peers = ["torch"] if given.without_lightning else ["torch", "lightning"]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        weights, out = str(pathlib.Path(folder) / "weights.safetensors"), str(pathlib.Path(folder) / "out")
        torch.manual_seed(0)
        model, _ = make_model(sizes)
        torch.nn.init.normal_(model.heads.head.weight, std=0.02)  # torchvision's is 0, and no gradient would pass it
        save_file(model.state_dict(), weights)
        del model
        save_file({"images": torch.randn(given.batch, 3, sizes["image"], sizes["image"]),
                   "labels": torch.randint(1000, (given.batch,))}, out + ".batch")
        print(f"{'precision':<11} {'who':<10} {'ms a step':>10} {'ratio':>6} {'peak MiB':>9} {'ratio':>6}  loss")
        for mode in given.modes.split(","):
            results = {}
            words = [str(sizes[key]) for key in ("layers", "width", "heads", "mlp", "image")]
            subprocess.run([given.build / "vit_training_bench", weights, out, mode, str(given.steps), *words], check=True)
            results["mantissa"] = result_in(out)
            for peer in peers:
                if peer == "lightning" and mode == "16-mixed":
                    continue  # on a CPU, Lightning trains in bf16-mixed instead
                subprocess.run([sys.executable, __file__, "--theirs", peer, weights, out, mode, str(given.steps),
                                "1" if given.tiny else "0"], check=True)
                results[peer] = result_in(out)
            ours = results["mantissa"]
            for who, result in results.items():
                ms = statistics.median(result["step_ms"][1:].tolist())
                mib = result["peak_mib"].item()
                time_ratio = statistics.median(ours["step_ms"][1:].tolist()) / ms
                print(f"{mode:<11} {who:<10} {ms:>10.0f} {time_ratio:>6.2f} {mib:>9} {ours['peak_mib'].item() / mib:>6.2f}  "
                      + " ".join(f"{loss:.4f}" for loss in result["loss"].tolist()), flush=True)
                error = ((result["loss"] - ours["loss"]).abs() / ours["loss"].clamp(min=0.1)).max().item()
                if not error <= TOLERANCE[mode]:
                    print(f"  the losses of {who} differ by {error:.1e} (limit {TOLERANCE[mode]:.0e}); its time does not count")
                    failed = True
    sys.exit(failed)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--theirs":
        theirs(sys.argv[2:])
    else:
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        main()
