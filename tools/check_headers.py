#!/usr/bin/env python3
"""Compiles each public header alone: it must include what it needs. Prints the compiler's errors.

    tools/check_headers.py BUILD COMPILER OPTIONS...

BUILD is a folder that CMake configured; its compile_commands.json has one file for each public header. The compiler is
clang. A header that includes one of the large headers of libtorch, itself or through another header, starts from a
precompiled one, which it would read anyway.
"""
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

LARGE = ("torch/nn/module.h", "ATen/core/Tensor.h")  # the first includes the second


@cache
def includes(header: str, folders: tuple[Path, ...]) -> frozenset[str]:
    file = next((folder / header for folder in folders if (folder / header).is_file()), None)
    return frozenset(re.findall(r'^\s*#\s*include\s*[<"](.+)[>"]', file.read_text(), re.MULTILINE) if file else [])


def reached(header: str, folders: tuple[Path, ...]) -> set[str]:
    """All headers that `header` includes, itself or through those in `folders`."""
    found, new = set(), {header}
    while new:
        new = set().union(*(includes(name, folders) for name in new)) - found
        found |= new
    return found


def main(build: Path, compiler: list[str]) -> int:
    units = [entry["file"] for entry in json.loads((build / "compile_commands.json").read_text())]
    headers = [unit.split("_verify_interface_header_sets/")[1].removesuffix(".cxx") for unit in units if "_header_sets/" in unit]
    folders = tuple(Path(option.removeprefix("-I")) for option in compiler if re.match("-I.|.*/include$", option))
    precompiled = {large: build / (Path(large).stem + ".pch") for large in LARGE}

    def run(arguments: list) -> bool:
        return subprocess.run([*compiler, *arguments], check=False).returncode == 0

    def precompile(large: str) -> bool:
        source = precompiled[large].with_suffix(".h")
        source.write_text(f"#include <{large}>\n")
        return run(["-fpch-instantiate-templates", "-x", "c++-header", source, "-o", precompiled[large]])

    def compiles(header: str) -> bool:
        base = next((["-include-pch", precompiled[large]] for large in LARGE if large in reached(header, folders)), [])
        return run([*base, "-fsyntax-only", "-x", "c++", header])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = list(pool.map(precompile, LARGE)).count(False) + list(pool.map(compiles, headers)).count(False)
    print(f"headers: {len(headers)} public headers compile alone" if not failed else f"headers: {failed} failed")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
