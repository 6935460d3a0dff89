"""bf16 and fp16 products, convolutions and attention at float32's speed for PyTorch on ordinary CPUs.

Importing this switches the kernels on, for the whole process, unless ``MANTISSA_CPU_KERNELS=0`` is in the environment.
Models, autocast and autograd need no change. See docs/python.md and docs/cpu-kernels.md of Mantissa.
"""

import contextlib
import pathlib
from collections.abc import Iterator

from mantissa_kernels._build import TORCH_VERSION

__all__ = ["TORCH_VERSION", "bitsandbytes_kernels", "choices", "disable", "enable", "enabled", "mixed_products", "pin", "switched", "tier"]

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(f"mantissa_kernels: PyTorch is not installed; run pip install torch=={TORCH_VERSION}") from error

# The layout of libtorch's classes changes with every release.
if torch.__version__.split("+")[0] != TORCH_VERSION:
    raise ImportError(
        f"mantissa_kernels: built with PyTorch {TORCH_VERSION}, but {torch.__version__} is installed. Build it again "
        f"with this one: pip install --force-reinstall --no-deps --no-build-isolation FOLDER, of Mantissa's source; "
        f"or go back: pip install torch=={TORCH_VERSION}")

torch.ops.load_library(pathlib.Path(__file__).with_name("libmantissa_kernels.so"))
_library = torch.ops.mantissa_kernels


def enable() -> bool:
    """Switches the kernels on for the process; returns whether they are on: never under ``MANTISSA_CPU_KERNELS=0``.

    Raises:
        ValueError: ``MANTISSA_CPU_KERNELS`` is neither 0 nor 1, or ``MANTISSA_MAX_ISA`` names no tier.
    """
    return bool(_library.enable())


def disable() -> None:
    """Switches back to PyTorch's own kernels, bit for bit."""
    _library.disable()


def enabled() -> bool:
    """Returns whether the kernels are on."""
    return bool(_library.enabled())


def mixed_products(on: bool) -> bool:
    """Sets whether autocast multiplies by float32 weights without 16-bit copies; returns the old setting.

    It is off at first: autocast keeps the copies until the backward pass, as without this module. Switching it on saves
    that memory, two bytes for each element of a weight, and adds the gradients of a weight that is used several times
    in float32. The backward pass then reads the weight itself, and raises a RuntimeError if the weight has changed
    since the forward pass.
    """
    return bool(_library.mixed_products(on))


def bitsandbytes_kernels(on: bool) -> bool:
    """Computes bitsandbytes's 4-bit and int8 layers on the CPU with these kernels; returns the old setting.

    Models need no change: the kernels replace those of bitsandbytes's operators. It is off at first. Switch it while no
    other thread uses bitsandbytes. See docs/python.md of Mantissa for what differs.

    Raises:
        ModuleNotFoundError: bitsandbytes is not installed.
    """
    if on:
        import bitsandbytes  # noqa: F401  (defines the operators)
    was_on = bool(_library.bitsandbytes_kernels(on))
    if on != was_on:
        _keep_layout(on)
    return was_on


def _keep_layout(on: bool) -> None:
    """Keeps bitsandbytes from packing weights anew for inference, or lets it do so again.

    On a CPU with AVX512-BF16 its layers have a layout of their own in evaluation. These kernels can read it, but have to
    convert it back in each call.
    """
    from bitsandbytes.nn import modules

    global _pack
    if on:
        _pack = getattr(modules, "_convert_weight_packed_for_cpu", None)
    if _pack is not None:  # another release of bitsandbytes may not have it
        modules._convert_weight_packed_for_cpu = (lambda weight, state, *_, **__: (weight, state)) if on else _pack


_pack = None


def tier() -> str:
    """Returns the tier in use: ``generic``, ``avx2``, ``avx512``, ``avx512_vnni``, ``avx512_bf16`` or ``amx_bf16``. ``MANTISSA_MAX_ISA`` limits it."""
    return str(_library.tier())


def choices() -> str:
    """Returns the kernels chosen so far (the fastest ones on this CPU), in the format of ``pin``."""
    return str(_library.choices())


def pin(kernels: str) -> None:
    """Pins kernels for the process, so that results have the same bits every time.

    ``kernels`` is one or more of ``avx2``, ``*product=libtorch``, ``fp16.gelu=avx512``, separated by commas. The
    environment variable ``MANTISSA_KERNELS`` does the same. See docs/cpu-kernels.md of Mantissa.

    Raises:
        ValueError: there is no such kernel or family, or this CPU lacks the tier.
    """
    _library.pin(kernels)


@contextlib.contextmanager
def switched(on: bool) -> Iterator[None]:
    """Switches on or off inside the ``with`` block, for every thread; restores the previous state afterwards."""
    before = enabled()
    (enable if on else disable)()
    try:
        yield
    finally:
        (enable if before else disable)()
