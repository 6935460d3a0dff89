#!/usr/bin/env python3
"""Checks that every numbered behaviour has a test that carries its number: check_spec_coverage.py [FAMILY...]

The numbers are listed in tests/spec/*.txt. A test of GS-21 has GS21 in its name, one of F8-4 has F8_4, because that
family ends in a digit. Without families all of them are checked. Fails if a number has neither a
test nor a stated reason, if a number with a reason has a test after all, or if a test carries an unlisted number.
"""
import pathlib
import re
import sys

LINE = re.compile(r"([A-Z]+|F8)-(\d+)\s+([^|]+?)(?:\s*\|\s*(.+))?$")
TEST_NAME = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*\w+,\s*(\w+)|^\s*def test_(\w+)", re.MULTILINE)
NUMBER = re.compile(r"(?<![A-Za-z0-9])(F8 |[A-Z]+)(\d+)(?![A-Za-z0-9])")


def read_behaviours(root):
    behaviours = {}
    for file in sorted(root.glob("tests/spec/*.txt")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            found = LINE.match(line)
            if not found or (found[1], int(found[2])) in behaviours:
                sys.exit(f"{file.relative_to(root)}:{number}: not a new 'FAMILY-number text [| why no test]': {line}")
            behaviours[found[1], int(found[2])] = (found[3], found[4])
    return behaviours


def read_tests(root):
    tests = {}
    for pattern in ("mantissa/**/*_test.cpp", "cli/**/*_test.cpp", "tests/**/*_test.cpp", "tests/**/test_*.py"):
        for file in sorted(root.glob(pattern)):
            for names in TEST_NAME.findall(file.read_text()):
                for family, number in NUMBER.findall("".join(names).replace("_", " ")):
                    tests.setdefault((family.strip(), int(number)), []).append(file.relative_to(root))
    return tests


def main(root, wanted):
    behaviours, tests = read_behaviours(root), read_tests(root)
    families = {family for family, _ in behaviours}
    if unknown := set(wanted) - families:
        sys.exit(f"no such family: {', '.join(sorted(unknown))}; there are {', '.join(sorted(families))}")
    errors = []
    for (family, number), (text, reason) in behaviours.items():
        if wanted and family not in wanted:
            continue
        if not reason and (family, number) not in tests:
            errors.append(f"{family}-{number} has no test: {text}")
        if reason and (family, number) in tests:
            errors.append(f"{family}-{number} has a test in {tests[family, number][0]}: strike '| {reason}'")
    errors += [f"{family}{number} in {files[0]} is not listed in tests/spec"
               for (family, number), files in tests.items() if family in families and (family, number) not in behaviours]
    counted = sum(not wanted or family in wanted for family, _ in behaviours)
    print("\n".join(errors) or f"{counted} numbered behaviours: each has a test or a reason")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent, sys.argv[1:]))
