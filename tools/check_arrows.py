#!/usr/bin/env python3
"""Checks that #includes between rooms follow the DEPENDS lines, and that those point to lower rows only."""
import pathlib
import re
import sys

ROWS = {"core": 0, "kernels": 1, "weights": 1, "io": 1, "amp": 2, "fp8": 2, "quant": 2, "optim": 2,
        "distributed": 3, "precision": 3, "trace": 3, "data": 3, "models": 3, "trainer": 4, "advisor": 4}


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
        if file.suffix not in (".h", ".cpp", ".cu", ".cuh") or file.stem.endswith("_test") \
                or file.stem.startswith("test_"):
            continue
        for other in re.findall(r'#include "mantissa/(\w+)/', file.read_text()):
            if other != room and other not in depends[room]:
                errors.append(f"{file.relative_to(root)} includes {other}, which {room}'s DEPENDS does not name")
    print("\n".join(errors) or f"{len(depends)} rooms: all includes follow the arrows")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent))
