"""The checks that must pass before a time means anything."""

from gpu_parts import curves, unit_tests


def run(context):
    unit_tests.run(context)
    curves.loss_curves(context)
