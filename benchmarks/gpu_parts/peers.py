"""PyTorch's and Lightning's side of benchmarks/gpu: `peers.py --facts`."""

import importlib.metadata
import json
import platform
import sys


def facts():
    """The versions of what is installed here."""
    versions = {"python": platform.python_version()}
    for package in ("torch", "lightning"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    return versions


if __name__ == "__main__":
    if sys.argv[1:] == ["--facts"]:
        print(json.dumps(facts()))
