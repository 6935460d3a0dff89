#!/usr/bin/env python3
"""Checks that every "Example:" line of a header names a file that exists, and a test or a name that the file has."""
import pathlib
import re
import sys

TEST = r"TEST(?:_F|_P)?\(\s*{}\s*,\s*{}\s*\)"


def found(header: pathlib.Path, root: pathlib.Path, name: str) -> pathlib.Path | None:
    """Returns the named file: relative to the header's folder, to its room or to the root."""
    folders = [header.parent, root.joinpath(*header.relative_to(root).parts[:2]), root / "mantissa", root]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def problem_of(header: pathlib.Path, root: pathlib.Path, example: str) -> str | None:
    name = re.match(r"[\w/]+\.(?:cpp|h|py|cu)", example)
    if not name:
        return "names no file"
    file = found(header, root, name[0])
    if not file:
        return f"{name[0]} does not exist"
    text = file.read_text()
    if test := re.match(r"[\w/.]+, (\w+)\.(\w+)", example):
        return None if re.search(TEST.format(*test.groups()), text) else f"{name[0]} has no test {test[1]}.{test[2]}"
    if (word := re.match(r"[\w/.]+, ([\w:]+)", example)) and not re.search(rf"\b{word[1]}\b", text):
        return f"{name[0]} does not have {word[1]}"
    return None


def main(root: pathlib.Path) -> int:
    count, errors = 0, []
    for header in sorted([*root.glob("mantissa/**/*.h"), *root.glob("cli/**/*.h")]):
        for number, line in enumerate(header.read_text().splitlines(), 1):
            if example := re.search(r"///\s+Example:\s+(.*)", line):
                count += 1
                if problem := problem_of(header, root, example[1]):
                    errors.append(f"{header.relative_to(root)}:{number}: {problem}")
    if not count:
        errors.append("no header has an example: the pattern or the folders no longer fit")
    print("\n".join(errors) or f"{count} examples: all exist")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent))
