#!/usr/bin/env python3
"""Converts a Lightning checkpoint (`.ckpt`) into a Mantissa checkpoint, which holds data and no code.

    lightning_ckpt.py epoch=3-step=400.ckpt OUT --strip-prefix model.

makes the folder OUT, a checkpoint as described in docs/checkpoints.md, from which Trainer::fit() resumes: weights,
optimizers, schedules, loss scale, epoch and step. OUT/lightning.json has the rest: hyperparameters and Lightning's
version. The states of random number generators, which do not fit C++'s, and of callbacks are not converted. The tool
needs torch, safetensors and xxhash, but not Lightning. A `.ckpt` is a pickle, which can run any code. It is read with
weights_only=True, which runs none; --trust reads a file that needs more.

Exit status: 0 done, 1 the file cannot be read or written, 2 the command is wrong. Nothing is left behind in 1 and 2.
"""

import argparse
import json
import math
import os
import pathlib
import pickle
import re
import shutil
import struct
import sys
import time
import zipfile

import torch
import xxhash
from safetensors.torch import save_file


class Refused(Exception):
    """The problem and the remedy."""


def load(path, trust):
    """Loads the checkpoint's dict. Tensors of a zip file (PyTorch since 1.6) stay on disk until they are used."""
    if not path.is_file():
        raise Refused(f"'{path}' is not a file; give the path of a .ckpt")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=not trust, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)|Unsupported class (\S+)", str(error))
        what = next((name for name in found.groups() if name), None) if found else None
        if what is None:
            raise Refused(f"'{path}' is not a checkpoint, or is damaged: {first_line(error)}; download the file "
                          "again") from error
        raise Refused(f"'{path}' holds an object of {what}, and to make one runs code that the file chooses; if you trust "
                      "the file, repeat with --trust, else save it again with hyperparameters of plain numbers, texts, "
                      "lists and dicts") from error
    except Exception as error:  # a damaged file raises EOFError, RuntimeError, KeyError; with --trust anything
        raise Refused(f"'{path}' cannot be read as a checkpoint: {first_line(error)}; download the file again, "
                      "and with --trust install what its objects need") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise Refused(f"'{path}' has no state_dict, so that Lightning did not write it; safetensors.torch.save_file writes "
                      "the tensors of a plain state_dict")
    return checkpoint


def first_line(error):
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def renamed(state, prefix):
    """Returns the tensors of a state_dict without `prefix`, and the names of other values (a module's extra state)."""
    tensors, left_out = {}, []
    if prefix and not any(name.startswith(prefix) for name in state):
        first = sorted({name.split(".")[0] + "." for name in state if "." in name})[:8]
        raise Refused(f"no name begins with '{prefix}'; names begin with {', '.join(first) or 'no common prefix'}")
    for name, value in state.items():
        new = name.removeprefix(prefix)
        if not isinstance(value, torch.Tensor):
            left_out.append(name)
        elif not new or new in tensors:
            raise Refused(f"without '{prefix}' the name of '{name}' is {'empty' if not new else 'a duplicate'}; leave "
                          "--strip-prefix out, or strip less")
        elif value.layout != torch.strided or value.is_quantized:
            raise Refused(f"'{name}' is sparse or quantized, which safetensors does not hold; convert it before it is saved")
        else:
            tensors[new] = value
    return tensors, left_out


def untied(tensors):
    """Gives every tensor its own memory, as safetensors requires. Also returns the tied names: {name: first name}."""
    own, tied, owner, whole = {}, {}, {}, {}
    for name, value in tensors.items():
        value = value.detach()
        memory = value.untyped_storage().data_ptr() if value.numel() else None
        view = (memory, value.dtype, value.storage_offset(), tuple(value.shape), value.stride())
        if memory is not None and view in whole:
            tied[name] = whole[view]
        whole.setdefault(view, name)
        shared = memory is not None and owner.setdefault(memory, name) != name
        value = value.resolve_conj().resolve_neg().contiguous()
        is_part = value.numel() * value.element_size() != value.untyped_storage().nbytes()
        own[name] = value.clone() if shared or is_part else value
    return own, tied


def plain(value):
    """Returns `value` as JSON can hold it; other values become their text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


# The names of safetensors. C128 is Mantissa's own; it is stored as F64 with an additional dimension of 2.
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16",
          torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64", torch.complex128: "C128", torch.float8_e4m3fn: "F8_E4M3",
          torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0"}
# Options of how Python's optimizers run, and values that its schedules keep in the groups. C++ has no use for
# them.
PYTHONS_OWN = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay", "initial_lr", "swa_lr"}


def entry(value, name):
    if value.dtype not in DTYPES:
        raise Refused(f"'{name}' is {value.dtype}, which no checkpoint holds; convert it before it is saved")
    return {"dtype": DTYPES[value.dtype], "shape": list(value.shape)}


def tree(value, path, tensors):
    """Returns `value` in the form of a manifest; its tensors go into `tensors` under their paths."""
    if isinstance(value, dict):
        return {("$" if str(key).startswith("$") else "") + str(key): tree(item, f"{path}.{key}" if path else str(key), tensors)
                for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [tree(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {"$tensor": path, **entry(value, path)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$double": "0x" + struct.pack(">d", value).hex()}
    if value is None or isinstance(value, (bool, float, str)) or (isinstance(value, int) and -2**63 <= value < 2**63):
        return value
    raise Refused(f"'{path}' is {type(value).__name__}, which no checkpoint holds; --weights-only leaves it out")


WHOLE_NUMBERS = {"params", "max_iter", "max_eval", "history_size"}


def option(name, value):
    """Converts integers to float, because Python accepts 0 for 0.0."""
    value = value.item() if isinstance(value, torch.Tensor) else value
    if isinstance(value, (list, tuple)) and name not in WHOLE_NUMBERS:
        return [option(name, item) for item in value]
    return float(value) if type(value) is int and name not in WHOLE_NUMBERS else value


def optimizer_tree(saved):
    """Returns Mantissa's form of a torch.optim state_dict(), without None and without options that C++ does not use."""
    groups = [{name: option(name, value) for name, value in group.items() if name not in PYTHONS_OWN | {"param_names"}}
              for group in saved["param_groups"]]
    return {"param_groups": groups,
            "state": {str(number): {name: value for name, value in state.items() if value is not None}
                      for number, state in saved["state"].items() if any(value is not None for value in state.values())}}


def schedule_tree(saved):
    """Returns the state of ReduceLROnPlateau, or of a schedule that counts its steps."""
    if "num_bad_epochs" in saved:
        return {"plateau": {"best": float(saved["best"]), "num_bad_epochs": saved["num_bad_epochs"],
                            "cooldown_counter": saved["cooldown_counter"], "last_epoch": saved["last_epoch"]}}
    return {"scheduler": {"step_count": saved["last_epoch"], "base_lrs": [float(rate) for rate in saved.get("base_lrs", [])]}}


def progress_tree(checkpoint):
    """Returns the position of the next batch. Lightning still counts an epoch as running when it saves at its end."""
    loop = (checkpoint.get("loops") or {}).get("fit_loop")
    progress = {"epoch": checkpoint.get("epoch") or 0, "batches": 0, "total_batches": 0,
                "global_step": checkpoint.get("global_step") or 0, "skipped_steps": 0, "validated_batches": -1}
    if loop:
        batches = loop["epoch_loop.batch_progress"]
        is_whole = batches["is_last_batch"]
        progress["epoch"] = loop["epoch_progress"]["current"]["ready"] - (0 if is_whole else 1)
        progress["batches"] = 0 if is_whole else batches["current"]["ready"]
        progress["total_batches"] = batches["total"]["ready"]
        if is_whole:
            progress["validated_batches"] = progress["total_batches"]
    return progress


def state_of(checkpoint, weights, left_out):
    """Returns the state from which Trainer::fit() resumes: see docs/checkpoints.md."""
    optimizers = [optimizer_tree(saved) for saved in checkpoint.get("optimizer_states", [])]
    schedules = [{} for _ in optimizers]
    saved = checkpoint.get("lr_schedulers", [])
    # The file does not say which optimizer a schedule belongs to; each optimizer may have one.
    if len(saved) == len(optimizers):
        for index, schedule in enumerate(saved):
            try:
                schedules[index] = schedule_tree(schedule)
            except KeyError:
                left_out.append(f"lr_schedulers.{index}")
    elif saved:
        left_out.append("lr_schedulers")
    scaler = checkpoint.get("MixedPrecision", checkpoint.get("native_amp_scaling_state")) or {}
    dtypes = {value.dtype for value in weights.values() if value.is_floating_point()}
    mode = {torch.bfloat16: "bf16-true", torch.float16: "16-true", torch.float64: "64-true"}
    name = "16-mixed" if scaler else mode.get(min(dtypes, key=lambda dtype: dtype.itemsize, default=None), "32-true")
    return {"progress": progress_tree(checkpoint), "exact": True, "seconds": 0.0,
            "precision": {"name": name, "state": {"loss_scale": scaler} if scaler else {}}, "optimizers": optimizers,
            "own_parameters": [{} for _ in optimizers], "schedules": schedules, "has_stepped": [True for _ in optimizers],
            "callbacks": {}, "training_metrics": {}, "epoch_metrics": {}, "validation_metrics": {}, "callback_metrics": {}}


def storable(tensors):
    """Returns tensors that do not share memory, with complex128 in the form that safetensors can hold."""
    return {name: torch.view_as_real(value).contiguous() if value.dtype == torch.complex128 else value
            for name, value in untied(tensors)[0].items()}


def digest(path):
    total = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def manifest(folder, step, weights, state):
    files = {path.name: {"bytes": path.stat().st_size, "xxh3_128": digest(path)} for path in sorted(folder.iterdir())}
    text = json.dumps({"format": "mantissa-checkpoint", "version": 1, "mantissa": "lightning_ckpt.py",
                       "libtorch": torch.__version__, "step": step, "written_unix_ms": time.time_ns() // 10**6, "files": files,
                       "weights": {name: entry(value, name) for name, value in weights.items()}, "state": state},
                      indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}").encode()
    return text + f',\n "xxh3_128": "{xxhash.xxh3_128_hexdigest(text)}"\n}}\n'.encode()


def write(folder, weights, state, info):
    """The only function that knows the layout on disk. The result is complete under its name, or it is missing."""
    temporary = folder.parent / f".{folder.name}.tmp-{os.getpid()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary.mkdir()
    try:
        save_file(storable(weights), temporary / "weights.safetensors", metadata={"format": "pt"})
        if state is not None:
            tensors = {}
            nodes = tree(state, "", tensors)
            save_file(storable(tensors), temporary / "state.safetensors")
            step = state["progress"]["global_step"]
            (temporary / "manifest.json").write_bytes(manifest(temporary, step, weights, nodes))
        (temporary / "lightning.json").write_text(json.dumps(info, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        for path in [*temporary.iterdir(), temporary]:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def convert(path, folder, prefix="", trust=False, weights_only=False):
    if os.path.lexists(folder):
        raise Refused(f"'{folder}' already exists; choose another folder, or remove it")
    checkpoint = load(path, trust)
    tensors, left_out = renamed(checkpoint["state_dict"], prefix)
    tensors, tied = untied(tensors)
    state = None
    if not weights_only and checkpoint.get("optimizer_states"):
        try:
            state = state_of(checkpoint, tensors, left_out)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Refused(f"'{path}' has a training state of another form than Lightning's ({type(error).__name__}: "
                          f"{first_line(error)}); --weights-only takes the weights alone") from error
    info = {
        "epoch": checkpoint.get("epoch"),
        "global_step": checkpoint.get("global_step"),
        "lightning_version": checkpoint.get("pytorch-lightning_version"),
        "hyper_parameters": checkpoint.get("hyper_parameters", {}),
        "datamodule_hyper_parameters": checkpoint.get("datamodule_hyper_parameters", {}),
        "grad_scaler": checkpoint.get("MixedPrecision", checkpoint.get("native_amp_scaling_state")),
        "tied": tied,
        "left_out": left_out,
    }
    write(folder, tensors, state, plain(info))
    return tensors, left_out, tied, state


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Turns a Lightning .ckpt into a checkpoint of Mantissa's.",
                                     epilog="Exit status: 0 done, 1 a file cannot be read or written, 2 the command is wrong.")
    parser.add_argument("ckpt", type=pathlib.Path, help="the checkpoint that Lightning wrote")
    parser.add_argument("out", type=pathlib.Path, help="the folder to make")
    parser.add_argument("--strip-prefix", default="", metavar="TEXT",
                        help="remove this prefix from the names, such as model.")
    parser.add_argument("--weights-only", action="store_true",
                        help="leave out optimizers, schedules, loss scale and progress")
    parser.add_argument("--trust", action="store_true", help="run the code that the file may hold")
    options = parser.parse_args(arguments)
    try:
        tensors, left_out, tied, state = convert(options.ckpt, options.out, options.strip_prefix, options.trust,
                                                 options.weights_only)
    except (Refused, OSError) as error:
        print(f"lightning_ckpt: error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {len(tensors)} tensors, {sum(value.nbytes for value in tensors.values())} bytes")
    if state is None:
        print("weights only: " + ("as asked" if options.weights_only else "the file has no optimizers to resume with"))
    else:
        print("resumes from epoch {epoch}, batch {batches}, step {global_step}".format(**state["progress"]))
    for name, first in tied.items():
        print(f"tied: '{name}' is a copy of '{first}'")
    if left_out:
        print(f"lightning_ckpt: warning: left out: {', '.join(left_out)}", file=sys.stderr)
    common = os.path.commonprefix(list(tensors)).rpartition(".")
    if len(tensors) > 1 and common[1]:
        print(f"hint: all names begin with '{common[0]}.'; --strip-prefix {common[0]}. takes it off")
    return 0


if __name__ == "__main__":
    sys.exit(main())
