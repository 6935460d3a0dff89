"""Images per second of a ResNet-50 and a ViT-L, compared with torch.compile and Lightning."""

from gpu_parts import throughput


def run(context):
    throughput.run(context, "images", [("resnet50", "bf16-mixed", False), ("vit-l", "bf16-mixed", False),
                                       ("resnet50", "16-mixed", False), ("vit-l", "16-mixed", False)])
