"""A step of bitsandbytes's Adam8bit compared with PyTorch's fused float32 Adam, on one parameter on the CPU. Both step
in turn, and the result is the median of the ratios. optim_bench compares ours with the same Adam."""

import argparse
import statistics
import time

import bitsandbytes
import torch


def make(optimizer, elements, **options):
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(elements, generator=generator) * 0.1).requires_grad_()
    weight.grad = torch.randn(elements, generator=generator) * 0.01
    return optimizer([weight], lr=1e-3, **options), weight


def seconds(optimizer):
    start = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 20, 1 << 22, 1 << 24])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, bitsandbytes {bitsandbytes.__version__}, {torch.get_num_threads()} threads")
    for elements in arguments.elements:
        wide, wide_weight = make(torch.optim.Adam, elements, fused=True)
        narrow, narrow_weight = make(bitsandbytes.optim.Adam8bit, elements)
        for _ in range(2):
            wide.step(), narrow.step()
        assert (wide_weight - narrow_weight).abs().mean() < 1e-4, "not the float32 Adam's weights"
        rounds = [(seconds(wide), seconds(narrow)) for _ in range(arguments.rounds)]
        ratio = statistics.median(b / a for a, b in rounds)
        print(f"{elements} elements: fused float32 Adam {statistics.median(a for a, _ in rounds) * 1e3:.2f} ms, "
              f"Adam8bit {statistics.median(b for _, b in rounds) * 1e3:.2f} ms, ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
