#!/usr/bin/env python3
"""Turns a checkpoint of Lightning (`.ckpt`) into files that hold data and no code.

    lightning_ckpt.py epoch=3-step=400.ckpt OUT --strip-prefix model.

makes the folder OUT with weights.safetensors (the state_dict) and lightning.json (hyperparameters, epoch, global_step,
gradient scaler, Lightning's version). Needs torch and safetensors, not Lightning. A `.ckpt` is a pickle, which can run
any code: it is read with weights_only=True, which runs none; --trust reads one that needs more.

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
import sys
import zipfile

import torch
from safetensors.torch import save_file


class Refused(Exception):
    """What is wrong, and the cure."""


def load(path, trust):
    """The checkpoint's dict. Of a zip, which every PyTorch since 1.6 writes, tensors stay on the disk until they are used."""
    if not path.is_file():
        raise Refused(f"'{path}' is no file; give the path of a .ckpt")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=not trust, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)|Unsupported class (\S+)", str(error))
        what = next((name for name in found.groups() if name), None) if found else None
        if what is None:
            raise Refused(f"'{path}' is no checkpoint, or is damaged: {first_line(error)}; get the file again from its "
                          "source") from error
        raise Refused(f"'{path}' holds an object of {what}, and to make one runs code that the file chooses; if you trust "
                      "the file, repeat with --trust, else save it again with hyperparameters of plain numbers, texts, "
                      "lists and dicts") from error
    except Exception as error:  # of a damaged file: EOFError, RuntimeError, KeyError, and with --trust anything
        raise Refused(f"'{path}' cannot be read as a checkpoint: {first_line(error)}; get the file again from its source, "
                      "and with --trust install what its objects need") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise Refused(f"'{path}' has no state_dict, so that Lightning did not write it; safetensors.torch.save_file writes "
                      "the tensors of a plain state_dict")
    return checkpoint


def first_line(error):
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def renamed(state, prefix):
    """The tensors of a state_dict without `prefix`, and the names of what are no tensors (a module's extra state)."""
    tensors, left_out = {}, []
    if prefix and not any(name.startswith(prefix) for name in state):
        first = sorted({name.split(".")[0] + "." for name in state if "." in name})[:8]
        raise Refused(f"no name begins with '{prefix}'; names begin with {', '.join(first) or 'no common prefix'}")
    for name, value in state.items():
        new = name.removeprefix(prefix)
        if not isinstance(value, torch.Tensor):
            left_out.append(name)
        elif not new or new in tensors:
            raise Refused(f"without '{prefix}' the name of '{name}' is {'empty' if not new else 'there twice'}; leave "
                          "--strip-prefix out, or strip less")
        elif value.layout != torch.strided or value.is_quantized:
            raise Refused(f"'{name}' is sparse or quantized, which safetensors does not hold; convert it before it is saved")
        else:
            tensors[new] = value
    return tensors, left_out


def untied(tensors):
    """Every tensor with memory of its own, as safetensors needs it, and which names shared all of it: {name: first name}."""
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
    """`value` as JSON can hold it; what it cannot becomes its text."""
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


def write(folder, tensors, info):
    """The one place that knows what the result looks like on the disk: whole under its name, or not there."""
    temporary = folder.parent / f".{folder.name}.tmp-{os.getpid()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary.mkdir()
    try:
        save_file(tensors, temporary / "weights.safetensors", metadata={"format": "pt"})
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


def convert(path, folder, prefix="", trust=False):
    if os.path.lexists(folder):
        raise Refused(f"'{folder}' is there already; choose another folder, or remove it")
    checkpoint = load(path, trust)
    tensors, left_out = renamed(checkpoint["state_dict"], prefix)
    tensors, tied = untied(tensors)
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
    write(folder, tensors, plain(info))
    return tensors, left_out, tied


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Turns a Lightning .ckpt into weights.safetensors and lightning.json.",
                                     epilog="Exit status: 0 done, 1 a file cannot be read or written, 2 the command is wrong.")
    parser.add_argument("ckpt", type=pathlib.Path, help="the checkpoint that Lightning wrote")
    parser.add_argument("out", type=pathlib.Path, help="the folder to make")
    parser.add_argument("--strip-prefix", default="", metavar="TEXT",
                        help="take this from the beginning of names, such as model.")
    parser.add_argument("--trust", action="store_true", help="run the code that the file may hold")
    options = parser.parse_args(arguments)
    try:
        tensors, left_out, tied = convert(options.ckpt, options.out, options.strip_prefix, options.trust)
    except (Refused, OSError) as error:
        print(f"lightning_ckpt: error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {len(tensors)} tensors, {sum(value.nbytes for value in tensors.values())} bytes")
    for name, first in tied.items():
        print(f"tied: '{name}' is a copy of '{first}'")
    if left_out:
        print(f"lightning_ckpt: warning: no tensors and left out: {', '.join(left_out)}", file=sys.stderr)
    common = os.path.commonprefix(list(tensors)).rpartition(".")
    if len(tensors) > 1 and common[1]:
        print(f"hint: all names begin with '{common[0]}.'; --strip-prefix {common[0]}. takes it off")
    return 0


if __name__ == "__main__":
    sys.exit(main())
