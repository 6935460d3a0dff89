"""The unit tests that need a GPU."""

from gpu_parts import unit_tests


def run(context):
    unit_tests.run(context)
