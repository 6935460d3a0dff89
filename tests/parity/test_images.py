"""Compares images with Pillow and torchvision: decoding, resizing, colours, RandAugment, and whole folders."""

import io
import json
import random
import subprocess

import numpy as np
import pytest
import torch
from conftest import BUILD
from PIL import Image
from safetensors.torch import load_file
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F


def photograph(height, width, seed=0):
    """Smooth shapes with some noise, as a camera makes them."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(image, dtype=np.int16) + rng.integers(-12, 13, (height, width, 3), dtype=np.int16)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


@pytest.fixture
def run_jobs(tmp_path):
    def run(*jobs):
        out = tmp_path / "images.safetensors"
        jobs = [{**job, "file": str(job["file"])} for job in jobs]
        done = subprocess.run([BUILD / "image_runner", out], input=json.dumps(jobs), capture_output=True, text=True)
        if done.returncode == 2:
            raise ValueError(done.stderr)
        done.check_returncode()
        return load_file(out)

    return run


def pixels(image):
    return torch.from_numpy(np.asarray(image.convert("RGB")).copy())


JPEGS = {
    "4:4:4": {"quality": 92, "subsampling": 0},
    "4:2:2": {"quality": 90, "subsampling": 1},
    "4:2:0": {"quality": 75, "subsampling": 2},
    "progressive": {"quality": 90, "progressive": True},
    "optimized": {"quality": 50, "optimize": True},
    "restarts": {"quality": 85, "restart_marker_blocks": 4},
}


@pytest.mark.parametrize("form", JPEGS)
def test_jpegs_and_their_crops_have_equal_pixels(tmp_path, run_jobs, form):
    file = tmp_path / "image.jpg"
    photograph(237, 331).save(file, **JPEGS[form])
    wanted = pixels(Image.open(file))
    rng = random.Random(1)
    boxes = [(0, 0, 237, 331), (0, 0, 1, 1), (236, 330, 1, 1), (1, 1, 235, 329)]
    for _ in range(60):
        height, width = rng.randint(1, 237), rng.randint(1, 331)
        boxes.append((rng.randint(0, 237 - height), rng.randint(0, 331 - width), height, width))
    got = run_jobs(*({"op": "decode", "file": file, "box": box, "max_shrink": 1} for box in boxes))
    for i, (top, left, height, width) in enumerate(boxes):
        assert torch.equal(got[str(i)], wanted[top:top + height, left:left + width]), boxes[i]


MODES = {"L": (".jpg", ".png"), "CMYK": (".jpg",), "RGBA": (".png",), "P": (".png",), "1": (".png",), "LA": (".png",),
         "RGB": (".jpg", ".png")}


@pytest.mark.parametrize("mode,suffix", [(mode, suffix) for mode, suffixes in MODES.items() for suffix in suffixes])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (64, 33)])
def test_every_kind_of_pixel_becomes_rgb_as_in_pillow(tmp_path, run_jobs, mode, suffix, size):
    file = tmp_path / f"image{suffix}"
    photograph(*size).convert(mode).save(file)
    got = run_jobs({"op": "decode", "file": file, "box": (0, 0, *size), "max_shrink": 1})
    assert torch.equal(got["0"], pixels(Image.open(file)))


def test_scaled_decoding_is_close_to_averaging(tmp_path, run_jobs):
    file = tmp_path / "image.jpg"
    photograph(400, 600).save(file, quality=90)
    exact = pixels(Image.open(file)).float()
    shrinks = (2, 4, 8)
    got = run_jobs(*({"op": "decode", "file": file, "box": (0, 0, 400, 600), "max_shrink": s} for s in shrinks))
    for i, s in enumerate(shrinks):
        mean = exact.view(400 // s, s, 600 // s, s, 3).mean(dim=(1, 3))
        difference = (got[str(i)].float() - mean).abs()
        assert difference.mean() < 1.5 and difference.max() < 24, (s, difference.mean(), difference.max())
        assert got[f"{i}.part"].tolist() == [0, 0, s]


def test_resizing_has_equal_bits(tmp_path, run_jobs):
    file = tmp_path / "image.png"
    image = photograph(97, 131)
    image.save(file)
    rng = random.Random(2)
    jobs, wanted = [], []
    sizes = [(1, 1), (97, 131), (224, 224), (3, 200), (200, 3), (500, 400)]
    sizes += [(rng.randint(1, 300), rng.randint(1, 300)) for _ in range(30)]
    for height, width in sizes:
        # Edges at quarters of pixels: Pillow computes with them in float32, and these are exact there.
        top, left = rng.randint(0, 200) / 4, rng.randint(0, 240) / 4
        region = (0, 0, 97, 131) if rng.random() < 0.5 else (
            top, left, rng.randint(1, 4 * 96 - int(4 * top)) / 4, rng.randint(1, 4 * 130 - int(4 * left)) / 4)
        box = (region[1], region[0], region[1] + region[3], region[0] + region[2])
        h, w = rng.randint(1, height), rng.randint(1, width)
        y, x = rng.randint(0, height - h), rng.randint(0, width - w)
        jobs.append({"op": "resize", "file": file, "source": region, "height": height, "width": width, "window": (y, x, h, w)})
        resized = pixels(image.resize((width, height), Image.Resampling.BILINEAR, box=box))
        wanted.append(resized[y:y + h, x:x + w])
    got = run_jobs(*jobs)
    for i, expected in enumerate(wanted):
        assert torch.equal(got[str(i)], expected), jobs[i]


ADJUSTMENTS = {
    "brightness": (F.adjust_brightness, (0, 0.3, 1, 1.7, 3)),
    "contrast": (F.adjust_contrast, (0, 0.3, 1, 1.7, 3)),
    "saturation": (F.adjust_saturation, (0, 0.3, 1, 1.7, 3)),
    "sharpness": (F.adjust_sharpness, (0, 0.3, 1, 1.7, 3)),
    "hue": (F.adjust_hue, (-0.5, -0.21, 0, 0.1, 0.5)),
    "rotate": (F.rotate, (-30, -7.3, 0, 12, 30, 90)),
}


@pytest.mark.parametrize("name", ADJUSTMENTS)
def test_adjustments_have_equal_bits(tmp_path, run_jobs, name):
    file = tmp_path / "image.png"
    function, factors = ADJUSTMENTS[name]
    # Also every hue, saturation and value, at a distance of 5.
    levels = np.arange(0, 256, 5, dtype=np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(len(levels) * len(levels), -1, 3)
    for image in (photograph(61, 83), Image.fromarray(cube), photograph(1, 1), photograph(2, 5)):
        if name == "rotate" and image.height == 1:
            continue
        image.save(file)
        got = run_jobs(*({"op": "adjust", "file": file, "name": name, "factor": factor} for factor in factors))
        for i, factor in enumerate(factors):
            assert torch.equal(got[str(i)], pixels(function(image, factor))), factor


def test_rand_augment_has_equal_bits(tmp_path, run_jobs):
    peer = transforms.RandAugment()
    file = tmp_path / "image.png"
    for image in (photograph(224, 224), photograph(61, 83, seed=3), photograph(3, 2)):
        image.save(file)
        space = peer._augmentation_space(31, (image.height, image.width))
        jobs, wanted = [], []
        for name, (magnitudes, signed) in space.items():
            for magnitude in (0, 1, 9, 15, 30):
                for negative in (False, True) if signed else (False,):
                    strength = float(magnitudes[magnitude]) if magnitudes.ndim > 0 else 0.0
                    jobs.append({"op": "rand_augment", "file": file, "name": name, "magnitude": magnitude, "negative": negative})
                    changed = transforms.autoaugment._apply_op(
                        image, name, -strength if negative else strength, transforms.InterpolationMode.NEAREST, None)
                    wanted.append(pixels(changed))
        got = run_jobs(*jobs)
        for i, expected in enumerate(wanted):
            assert torch.equal(got[str(i)], expected), jobs[i]


def test_random_crops_are_distributed_as_torchvision_draws_them(run_jobs):
    count = 4000
    for height, width in ((375, 500), (500, 60), (1, 20000)):
        got = run_jobs(*({"op": "crop", "file": "", "seed": seed, "height": height, "width": width} for seed in range(count)))
        ours = torch.stack([got[str(i)] for i in range(count)])
        blank = Image.new("L", (width, height))
        torch.manual_seed(0)
        theirs = torch.tensor([transforms.RandomResizedCrop.get_params(blank, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(count)],
                              dtype=torch.double)
        for column in range(4):
            a, b = ours[:, column].sort().values, theirs[:, column].sort().values
            # The Kolmogorov-Smirnov distance; 1.95 sqrt(2 / n) is exceeded once in a thousand times. The seeds are fixed.
            grid = torch.cat([a, b]).unique()
            distance = (torch.searchsorted(a, grid, right=True) - torch.searchsorted(b, grid, right=True)).abs().max() / count
            assert distance < 1.95 * (2 / count) ** 0.5, (height, width, column)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "images"
    for label, name in enumerate(["cat", "Dog", "ant"]):
        for i, (height, width) in enumerate([(375, 500), (500, 375), (90, 300), (2000, 1100)]):
            sub = root / name / ("b" if i == 2 else "")
            sub.mkdir(parents=True, exist_ok=True)
            photograph(height, width, seed=10 * label + i).save(sub / f"{i}.{'png' if i == 1 else 'JPEG'}")
    return root


def test_folders_evaluate_as_torchvisions(folder, run_jobs):
    change = transforms.Compose([transforms.Resize(64), transforms.CenterCrop(56), transforms.ToTensor(),
                                 transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    theirs = ImageFolder(folder, change)
    data, target = torch.stack([sample for sample, _ in theirs]), torch.tensor([label for _, label in theirs])
    job = {"op": "evaluate", "file": folder, "size": 56, "resize": 64}
    exact = run_jobs({**job, "scaled": False})
    assert torch.equal(exact["0.target"], target)
    assert torch.equal(exact["0.data"], data)
    # Scaled decoding changes pixels by a few levels.
    levels = (run_jobs({**job, "scaled": True})["0.data"] - data).abs() * 0.229 * 255
    assert 0 < levels.mean() < 1 and levels.max() < 16, (levels.mean(), levels.max())


def bad_files():
    image, whole = photograph(64, 64), io.BytesIO()
    image.save(whole, "JPEG")
    png = io.BytesIO()
    image.save(png, "PNG")
    return {
        "text.jpg": (b"this is no image", "neither JPEG nor PNG"),
        "empty.png": (b"", "the file is empty"),
        "cut.jpg": (whole.getvalue()[:-200], "truncated or corrupt"),
        "header.jpg": (whole.getvalue()[:20], "truncated or corrupt"),
        "cut.png": (png.getvalue()[:-200], "truncated or corrupt"),
        "flipped.png": (png.getvalue()[:2000] + b"\xff" + png.getvalue()[2001:], "truncated or corrupt"),
    }


@pytest.mark.parametrize("name", bad_files())
def test_bad_files_are_refused_by_name(tmp_path, run_jobs, name):
    content, message = bad_files()[name]
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        run_jobs({"op": "decode", "file": file, "box": (0, 0, 64, 64), "max_shrink": 1})
