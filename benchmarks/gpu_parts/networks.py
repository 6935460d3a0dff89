"""The networks of modes, gpt2 and vision: full-size ones, and small ones of the same kind for a CPU rehearsal."""

# GPT-2's 50257 tokens are rounded up to a multiple of 128, as in nanoGPT and llm.c, so that the rows of the
# output layer are aligned for tensor cores. That layer has separate weights (mantissa::Gpt ties none): 163 M
# parameters, not 124 M.
GPT2 = {"kind": "gpt", "layers": 12, "width": 768, "heads": 12, "context": 1024, "vocabulary": 50304}
RESNET50 = {"kind": "resnet", "blocks": [3, 4, 6, 3], "width": 64, "classes": 1000}
VIT_L = {"kind": "vit", "layers": 24, "width": 1024, "heads": 16, "image": 224, "patch": 16, "classes": 1000}

FULL = {"gpt2": {"model": GPT2, "batch": 16},
        "resnet50": {"model": RESNET50, "batch": 128, "image": 224, "channels_last": True},
        "vit-l": {"model": VIT_L, "batch": 32, "image": 224}}
SMALL_GPT2 = {**GPT2, "layers": 2, "width": 64, "heads": 2, "context": 32, "vocabulary": 256}
SMALL = {"gpt2": {"model": SMALL_GPT2, "batch": 2},
         "resnet50": {"model": {**RESNET50, "blocks": [1, 1, 1, 1], "width": 8, "classes": 10}, "batch": 4, "image": 32,
                      "channels_last": True},
         "vit-l": {"model": {**VIT_L, "layers": 2, "width": 64, "heads": 2, "image": 32, "patch": 8, "classes": 10},
                   "batch": 4, "image": 32}}


def job(context, name, precision, tf32=False):
    """Returns the job of a network in a mode, for duels.Duels.run()."""
    # 1e-8 is 0 in fp16, and AdamW would divide by 0 (docs/modes.md). In the first steps of a ResNet, AdamW
    # would make full steps from gradients that are only rounding errors, and the losses of the two sides
    # could not be compared.
    is_resnet = FULL[name]["model"]["kind"] == "resnet"
    eps, lr = 1e-4 if is_resnet or precision == "16-true" else 1e-8, 1e-4 if is_resnet else 1e-3
    return {**context.size(FULL, SMALL)[name], "precision": precision, "tf32": tf32, "eps": eps, "lr": lr}
