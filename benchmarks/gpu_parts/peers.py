"""PyTorch's and Lightning's side of benchmarks/gpu.

peers.py --facts             prints the installed versions
peers.py --prepare JOB.json  writes the weights and the data that a job names
peers.py JOB.json            trains in rounds, as gpu_train.cpp describes: the same jobs, the same lines in and out

A job's "loop" is amp (PyTorch's own), compile (the same with torch.compile), fabric or trainer (Lightning's).
"""

import contextlib
import ctypes
import importlib.metadata
import itertools
import json
import logging
import os
import pathlib
import platform
import resource
import sys
import time
import warnings

DTYPE = {"16-mixed": "float16", "bf16-mixed": "bfloat16", "16-true": "float16", "bf16-true": "bfloat16"}


def facts():
    versions = {"python": platform.python_version()}
    for package in ("torch", "lightning", "safetensors"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    return versions


def prepare(job):
    """Writes weights from a seed and four batches of noise. Their values do not matter to the time of a step."""
    import torch
    from gpu_parts import twins
    from safetensors.torch import save_file

    torch.manual_seed(1)
    save_file(twins.make_model(job["model"]).state_dict(), job["weights"])
    model, batch, batches = job["model"], job["batch"], 4
    if model["kind"] == "gpt":
        # GPT-2 has 50257 tokens. The model's vocabulary is rounded up, and the additional tokens never occur.
        tokens = torch.randint(min(model["vocabulary"], 50257), (batches, batch, model["context"] + 1))
        data = {"data": tokens[:, :, :-1].contiguous(), "target": tokens[:, :, 1:].contiguous()}
    else:
        data = {"data": torch.randn(batches, batch, 3, job["image"], job["image"]),
                "target": torch.randint(model["classes"], (batches, batch))}
    save_file(data, job["data"])


def use_fast_algorithms():
    import torch

    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True


class HostSyncs:
    """Counts the calls that make the host wait for the device, with the library of host_syncs_c.cpp.

    MANTISSA_HOST_SYNCS is the path of the library.
    """

    def __init__(self, device):
        self.device = str(device)
        self.library = ctypes.CDLL(os.environ["MANTISSA_HOST_SYNCS"])
        for function in (self.library.mantissa_start_counting, self.library.mantissa_stop_counting):
            function.restype = ctypes.c_char_p

    def start(self):
        error = self.library.mantissa_start_counting(self.device.encode())
        if error:
            raise RuntimeError(error.decode().splitlines()[0])

    def stop(self):
        return json.loads(self.library.mantissa_stop_counting())


class Rounds:
    """See the class of the same name in gpu_train.cpp."""

    def __init__(self, job, device, answers):
        self.device, self.steps, self.answers = device, job["first_steps"], answers
        self.losses, self.over = [], False
        self.syncs = HostSyncs(device) if job["count_syncs"] else None
        self._begin()

    def _begin(self):
        if self.syncs:
            self.syncs.start()
        self.begin = time.perf_counter()

    def step_done(self, loss, scaler):
        self.losses.append(loss.detach())
        if len(self.losses) < self.steps:
            return
        self._report(scaler)
        self.losses.clear()
        line = sys.stdin.readline()
        self.over = not line.strip()
        self.steps = 0 if self.over else int(line)
        self._begin()

    def _report(self, scaler):
        import torch

        counted = {"syncs": self.syncs.stop()} if self.syncs else {}
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self.device)
        ms = (time.perf_counter() - self.begin) / self.steps * 1e3
        peak = (torch.cuda.max_memory_allocated(self.device) if on_gpu
                else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        use_fast_algorithms()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        print(json.dumps({"ms": ms, "losses": torch.stack(self.losses).double().tolist(),
                          "scale": scaler.get_scale() if scaler else None, "peak_bytes": peak, **counted}),
              file=self.answers, flush=True)


def load_model(job, device):
    import torch
    from gpu_parts import twins
    from safetensors.torch import load_file

    with torch.device("meta"):
        model = twins.make_model(job["model"])
    model.load_state_dict(load_file(job["weights"], device=str(device)), assign=True)
    return model.to(memory_format=torch.channels_last) if job["channels_last"] else model


def load_batches(job, device):
    import torch
    from safetensors.torch import load_file

    tensors = load_file(job["data"], device=str(device))
    layout = torch.channels_last if job["channels_last"] else torch.preserve_format
    return [(data.to(memory_format=layout), target) for data, target in zip(tensors["data"], tensors["target"])]


def make_optimizer(job, parameters):
    import torch

    return torch.optim.AdamW(parameters, lr=job["lr"], eps=job["eps"], weight_decay=job["weight_decay"],
                             fused=True if job["optimizer"] == "fused-adamw" else None)


def cross_entropy(logits, target):
    import torch.nn.functional as F

    return F.cross_entropy(logits.float().flatten(0, -2), target.flatten())


def train_plain(job, device, rounds):
    """Trains with torch.amp, as in PyTorch's documentation."""
    import torch

    model = load_model(job, device)
    dtype = getattr(torch, DTYPE.get(job["precision"], "float32"))
    is_true = job["precision"].endswith("-true")
    if is_true:
        model.to(dtype)
    parameters = list(model.parameters())
    optimizer = make_optimizer(job, parameters)
    scaler = torch.amp.GradScaler(device.type) if job["precision"] == "16-mixed" else None
    if job["loop"] == "compile":
        model = torch.compile(model, backend=job["backend"])
    for data, target in itertools.cycle(load_batches(job, device)):
        optimizer.zero_grad()
        with contextlib.nullcontext() if is_true else torch.autocast(device.type, dtype):
            loss = cross_entropy(model(data.to(dtype) if is_true and data.is_floating_point() else data), target)
        if scaler:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, job["clip"])
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        rounds.step_done(loss, scaler)
        if rounds.over:
            return


def lightning_place(device):
    return {"accelerator": device.type, "devices": 1 if device.type == "cpu" else [device.index]}


def train_fabric(job, device, rounds):
    from lightning.fabric import Fabric

    fabric = Fabric(precision=job["precision"], **lightning_place(device))
    model = load_model(job, device)
    model, optimizer = fabric.setup(model, make_optimizer(job, model.parameters()))
    scaler = getattr(fabric._precision, "scaler", None)
    for data, target in itertools.cycle(load_batches(job, device)):
        optimizer.zero_grad()
        loss = cross_entropy(model(data), target)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=job["clip"])
        optimizer.step()
        rounds.step_done(loss, scaler)
        if rounds.over:
            return


def train_trainer(job, device, rounds):
    import lightning
    import torch

    on_host = job["batches_on"] == "host"

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return itertools.cycle(load_batches(job, "cpu" if on_host else device))

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = load_model(job, device)

        def training_step(self, batch, _):
            data, target = batch
            return cross_entropy(self.net(data), target)

        def configure_optimizers(self):
            return make_optimizer(job, self.net.parameters())

    class RoundsOfTrainer(lightning.Callback):
        def on_train_batch_end(self, trainer, task, outputs, batch, batch_index):
            rounds.step_done(outputs["loss"], getattr(trainer.precision_plugin, "scaler", None))
            trainer.should_stop = rounds.over

    trainer = lightning.Trainer(
        precision=job["precision"], gradient_clip_val=job["clip"], max_epochs=1, callbacks=[RoundsOfTrainer()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        **lightning_place(device))
    # Data that is not on the device is loaded as users do it: the loader copies each batch into page-locked
    # memory.
    pinned = torch.utils.data.DataLoader(Endless(), batch_size=None, pin_memory=device.type == "cuda")
    trainer.fit(Task(), pinned if on_host else Endless())


LOOPS = {"amp": train_plain, "compile": train_plain, "fabric": train_fabric, "trainer": train_trainer}


def train(job):
    # The output of libraries goes to standard error; standard output is for the rounds.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(job["threads"])
    torch.set_float32_matmul_precision("high" if job["tf32"] else "highest")
    torch.backends.cudnn.allow_tf32 = job["tf32"]
    if job["deterministic_first"]:
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:
        use_fast_algorithms()
    device = torch.device(job["device"])
    LOOPS[job["loop"]](job, device, Rounds(job, device, answers))


if __name__ == "__main__":
    if sys.argv[1] == "--facts":
        print(json.dumps(facts()))
    elif sys.argv[1] == "--prepare":
        prepare(json.loads(pathlib.Path(sys.argv[2]).read_text()))
    else:
        train(json.loads(pathlib.Path(sys.argv[1]).read_text()))
