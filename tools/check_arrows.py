#!/usr/bin/env python3
"""Checks that #includes between rooms follow the DEPENDS lines, that those point to lower rows only, that a room's
layers include no layer above them, and that no room calls another room's kernels of one device."""
import pathlib
import re
import sys

ROWS = {"core": 0, "kernels": 1, "weights": 1, "io": 1, "amp": 2, "fp8": 2, "quant": 2, "optim": 2, "lora": 2,
        "distributed": 3, "precision": 3, "trace": 3, "data": 3, "layers": 3, "models": 3, "trainer": 4, "advisor": 4}

# A room's layers, lowest first. "" is the room's own folder, and also stands for folders that are not named.
LAYERS = {"kernels": ["", "cpu", "aten"]}

# Layers that other rooms do not include: a caller finds the kernels of a tensor's device in aten/device_kernels.h. The
# exception, fp8.h, is what the room fp8 computes on the CPU alone so far.
PRIVATE = {"kernels": ["cpu", "cuda"]}
EXCEPTIONS = ["mantissa/kernels/cpu/fp8.h"]


def main(root: pathlib.Path) -> int:
    depends, errors = {}, []
    for lists in sorted(root.glob("mantissa/*/CMakeLists.txt")):
        text = lists.read_text()
        found = re.search(r"mantissa_room\((\w+)(?:\s+MODULES)?(?:\s+DEPENDS\s+([a-z0-9_\s]+?))?\s+[A-Z]", text)
        depends[found[1]] = set((found[2] or "").split())
    for room, rooms in depends.items():
        errors += [f"{room} depends on {other}, which is not in a lower row"
                   for other in rooms if ROWS[other] >= ROWS[room]]
    for file in sorted(root.glob("mantissa/*/**/*.*")):
        room = file.relative_to(root).parts[1]
        if file.suffix not in (".h", ".cpp", ".cu", ".cuh") or "_test" in file.stem or file.stem.startswith("test_"):
            continue
        text, layers = file.read_text(), LAYERS.get(room, [])
        own = file.relative_to(root).parts[2]
        for included in re.findall(rf'#include "mantissa/{room}/(\w+)/', text):
            if included in layers and layers.index(included) > layers.index(own if own in layers else ""):
                errors.append(f"{file.relative_to(root)} includes {included}/, a layer above it")
        for other in re.findall(r'#include "mantissa/(\w+)/', text):
            if other != room and other not in depends[room]:
                errors.append(f"{file.relative_to(root)} includes {other}, which {room}'s DEPENDS does not name")
        for header, other, layer in re.findall(r'#include "(mantissa/(\w+)/(\w+)/[^"]+)"', text):
            if other != room and layer in PRIVATE.get(other, []) and header not in EXCEPTIONS:
                errors.append(f"{file.relative_to(root)} includes {header}, which is private to {other}")
    print("\n".join(errors) or f"{len(depends)} rooms: all includes follow the arrows")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent))
