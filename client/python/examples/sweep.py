"""A sweep: N processes train the same network with different learning rates, on one decode of the data.

They are a broadcast group: each gets every batch, and none begins before all are there. --loader torch gives each a
DataLoader of its own, for comparison. The last line is JSON; cpu_seconds is of all processes, the daemon's included.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from typing import Any

import common


def daemon_seconds() -> dict:
    """CPU time of each feedd of this machine, by process."""
    seconds = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                before, _, after = stat.read().rpartition(")")
        except OSError:
            continue  # it has just ended
        if before.endswith("(feedd"):
            user, system = after.split()[11:13]
            seconds[name] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return seconds


def make_loader(options: Any, config: str) -> Any:
    if options.loader == "feedd":
        import feedd

        photos = {} if options.size == 0 else {
            "transform": [feedd.Resize(options.size * 8 // 7), feedd.CenterCrop(options.size), feedd.RandomHorizontalFlip()]
        }  # fmt: skip
        source = "train" if config else options.data
        return feedd.DataLoader(
            source, batch_size=options.batch_size, device=options.device, dtype="float32", mean=0.5, std=0.5,
            share="broadcast", members=options.trainers, socket=options.socket, autostart=config or True, **photos,
        )  # fmt: skip
    import digits
    import torch

    data = PhotoFolder(options.data, options.size) if options.size else digits.Digits(options.data, "train")
    return torch.utils.data.DataLoader(data, options.batch_size, shuffle=True, drop_last=True, pin_memory=options.device != "cpu",
                                       num_workers=options.workers // options.trainers,
                                       persistent_workers=options.workers >= options.trainers)  # fmt: skip


class PhotoFolder:
    """torchvision's ImageFolder, Resize, CenterCrop, RandomHorizontalFlip, ToTensor and Normalize, by Pillow."""

    def __init__(self, root: str, size: int):
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.size = size
        self.samples = [
            (os.path.join(where, name), label)
            for label, one in enumerate(classes)
            for where, _, names in os.walk(os.path.join(root, one))
            for name in names
            if name.lower().endswith((".jpg", ".jpeg"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        import numpy
        import torch
        from PIL import Image

        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        scale = self.size * 8 // 7 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        image = image.crop((left, top, left + self.size, top + self.size))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div(255).sub(0.5).div(0.5), label


def network(options: Any) -> Any:
    from torch import nn

    if not options.size:
        return common.cnn()
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 1000)
    )


def train(number: int, options: Any, config: str, results: Any) -> None:
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader, device = make_loader(options, config), torch.device(options.device)
    model = network(options).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * 2**number)
    steps = 0
    with common.Timer() as timer:
        while steps < options.steps:
            for images, labels in loader:
                loss = F.cross_entropy(
                    model(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True)
                )
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                steps += 1
                if steps == options.steps:
                    break
        loss = loss.item()
    results.put((number, steps * options.batch_size, timer.seconds, loss))


def main() -> None:
    options = common.parser(__doc__ or "")
    options.add_argument(
        "--data", default=str(common.FASHION), help="MNIST's files; with --size a folder of class folders"
    )
    options.add_argument("--size", type=int, default=0, help="of photos in pixels; 0: digits")
    options.add_argument("--trainers", type=int, default=4)
    options.add_argument("--steps", type=int, default=500)
    options.add_argument("--batch-size", type=int, default=64)
    options.add_argument("--loader", choices=["feedd", "torch"], default="feedd")
    options.add_argument("--workers", type=int, default=16, help="of torch's loaders, all together")
    chosen = options.parse_args()
    config = "" if chosen.size else common.write_config(common.digits_config(chosen.data), tempfile.mkdtemp())
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    before, daemons_before = os.times(), daemon_seconds()
    processes = [
        spawn.Process(target=train, args=(number, chosen, config, results)) for number in range(chosen.trainers)
    ]
    with common.Timer() as timer:
        for process in processes:
            process.start()
        rows = sorted(results.get() for _ in processes)
        daemons = daemon_seconds()
        for process in processes:
            process.join()
    after = os.times()
    for number, samples, seconds, loss in rows:
        print(f"learning rate {0.01 * 2**number:g}: {samples / seconds:.0f} images/s, loss {loss:.4f}")
    samples = sum(row[1] for row in rows)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    cpu += sum(spent - daemons_before.get(pid, 0) for pid, spent in daemons.items())
    print(json.dumps({
        "loader": chosen.loader, "trainers": chosen.trainers, "images_per_s": round(samples / max(row[2] for row in rows)),
        "cpu_seconds": round(cpu, 2), "cpu_seconds_per_1000_images": round(1000 * cpu / samples, 4),
        "seconds": round(timer.seconds, 2),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
