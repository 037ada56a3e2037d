"""ImageNet-style training of a ResNet-50: random resized crops, half precision, one process a GPU under torchrun.

    torchrun --nproc-per-node=8 imagenet.py --train /data/imagenet/train --val /data/imagenet/val

Each rank reads its share; the daemon decodes for all of them. --checkpoint: what is left of an epoch goes on after a
restart, on any number of GPUs. Small photos and a small network (--arch small) show it without torchvision.
"""

from __future__ import annotations

import json
import os
from typing import Any

import common
import torch
import torch.distributed as dist
import torch.nn.functional as F

import feedd

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def network(options: Any, classes: int) -> Any:
    if options.arch == "resnet50":
        import torchvision

        return torchvision.models.resnet50(num_classes=classes)
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.add_argument("--train", required=True, help="folder of class folders")
    parser.add_argument("--val", help="likewise")
    parser.add_argument("--arch", choices=["resnet50", "small"], default="resnet50")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256, help="of one GPU")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=0, help="end after so many of this run; 0: don't")
    parser.add_argument("--center-crop", action="store_true", help="without random resized crops")
    parser.add_argument("--checkpoint", help="file to go on from, and to write at the end")
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    center = [feedd.Resize(options.size * 8 // 7), feedd.CenterCrop(options.size)]
    random = [feedd.RandomResizedCrop(options.size), feedd.RandomHorizontalFlip()]
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    common_options = {"device": device, "dtype": half, "mean": MEAN, "std": STD, "socket": options.socket}
    train = feedd.DataLoader(options.train, batch_size=options.batch_size,
                             transform=center if options.center_crop else random, **common_options)  # fmt: skip
    model = network(options, len(train.classes or [])).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1 * options.batch_size * ranks / 256, momentum=0.9, weight_decay=1e-4
    )
    scaler = torch.amp.GradScaler(device.type, enabled=half == torch.float16)
    first = 0
    if options.checkpoint and os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train.load_state_dict(saved["loader"])
        first = train.stats()["epoch"]
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    step = 0
    with common.Timer() as timer:
        for epoch in range(first, options.epochs):
            train.set_epoch(epoch)
            model.train()
            for images, labels in train:
                images = images.contiguous(memory_format=torch.channels_last)
                with torch.autocast(device.type, half):
                    loss = F.cross_entropy(model(images), labels)
                optimizer.zero_grad(set_to_none=True)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                step += 1
                if step == options.steps:
                    break
            if step == options.steps:
                break
        loss = loss.item() if step else float("nan")
    if options.checkpoint and train.ranks.rank == 0:
        plain = model.module if ranks > 1 else model
        torch.save(
            {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "loader": train.state_dict()},
            options.checkpoint,
        )
    report = {"rank": train.ranks.rank, "world_size": train.ranks.world_size, "steps": step, "loss": round(loss, 4),
              "images_per_s": round(step * options.batch_size * ranks / timer.seconds),
              "position": [train.stats()["epoch"], train.stats()["position"]]}  # fmt: skip
    if options.val:
        validation = feedd.DataLoader(options.val, batch_size=options.batch_size, order="sequential", tail="pad", transform=center,
                                      **common_options)  # fmt: skip
        model.eval()
        right = total = torch.zeros((), device=device)
        with torch.no_grad(), torch.autocast(device.type, half):
            for images, labels in validation:
                valid = validation.batch.valid
                right = right + (model(images).argmax(1) == labels)[:valid].sum()
                total = total + valid
        if ranks > 1:
            dist.all_reduce(right)
            dist.all_reduce(total)
        report["accuracy"] = round(100 * (right / total).item(), 2)
    print(json.dumps(report) + "\n", end="", flush=True)  # one write: ranks share the terminal
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
