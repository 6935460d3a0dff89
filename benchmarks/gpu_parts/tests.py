"""What must hold before a time means anything."""

from gpu_parts.curves import loss_curves


def run(context):
    loss_curves(context)
