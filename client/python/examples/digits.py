"""The seed experiment: a small network learns Fashion-MNIST (or MNIST) in five epochs.

Raw uint8 goes to the GPU, where one kernel makes (x - 127.5) / 127.5 of it. --half: batches and network in half precision
(autocast). --loader torch: the same script with torch.utils.data.DataLoader, the files decoded as torchvision does it,
for comparison. The last line is JSON.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy
import torch
import torch.nn.functional as F

import feedd


def feedd_loaders(options: Any) -> Any:
    folder = tempfile.mkdtemp()
    start = {"socket": options.socket, "autostart": common.write_config(common.digits_config(options.data), folder)}
    floats = {"dtype": torch.float16 if options.half else torch.float32, "mean": 0.5, "std": 0.5}
    train = feedd.DataLoader(
        "train", batch_size=options.batch_size, device=options.device, seed=options.seed, **floats, **start
    )
    test = feedd.DataLoader(
        "test", batch_size=1000, device=options.device, order="sequential", tail="partial", **floats, **start
    )
    return train, test


class Digits(torch.utils.data.Dataset):
    """What torchvision.datasets.MNIST with ToTensor and Normalize gives: Pillow's image, floats, one at a time."""

    def __init__(self, folder: str, prefix: str):
        self.images, self.labels = (read_idx(folder, f"{prefix}-{kind}") for kind in ("images-idx3", "labels-idx1"))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        picture = Image.fromarray(self.images[index], mode=None)
        pixels = torch.from_numpy(numpy.array(picture, numpy.uint8, copy=True))[None]
        return pixels.to(torch.float32).div(255).sub(0.5).div(0.5), int(self.labels[index])


def read_idx(folder: str, name: str) -> Any:
    path = Path(folder) / f"{name}-ubyte"
    data = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(path.name + ".gz").read_bytes())
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(shape)


def torch_loaders(options: Any) -> Any:
    more = {
        "num_workers": options.workers,
        "pin_memory": options.device != "cpu",
        "persistent_workers": options.workers > 0,
    }
    train = torch.utils.data.DataLoader(
        Digits(options.data, "train"), options.batch_size, shuffle=True, drop_last=True, **more
    )
    return train, torch.utils.data.DataLoader(Digits(options.data, "t10k"), 1000, **more)


def train_one(options: Any) -> dict:
    torch.manual_seed(options.seed)
    train, test = (feedd_loaders if options.loader == "feedd" else torch_loaders)(options)
    device = torch.device(options.device)
    model = common.cnn().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    with common.Timer() as timer:
        for epoch in range(options.epochs):
            model.train()
            for images, labels in train:
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                with torch.autocast(
                    device.type, torch.float16 if device.type == "cuda" else torch.bfloat16, enabled=options.half
                ):
                    loss = F.cross_entropy(model(images if options.half else images.float()), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    model.eval()
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for images, labels in test:
            right += (model(images.to(device).float()).argmax(1) == labels.to(device)).sum()
    samples = options.epochs * len(train) * options.batch_size
    return {
        "loader": options.loader, "seed": options.seed, "accuracy": round(100 * right.item() / len(test.dataset), 2),
        "seconds": round(timer.seconds, 3), "images_per_s": round(samples / timer.seconds),
    }  # fmt: skip


def main() -> None:
    options = common.parser(__doc__ or "")
    options.add_argument("--data", default=str(common.FASHION), help="folder of MNIST's four files, gzip'ed or not")
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--batch-size", type=int, default=64)
    options.add_argument("--lr", type=float, default=1e-3)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--half", action="store_true", help="half precision")
    options.add_argument("--loader", choices=["feedd", "torch"], default="feedd")
    options.add_argument("--workers", type=int, default=4, help="of torch's loader")
    print(json.dumps(train_one(options.parse_args())))


if __name__ == "__main__":
    main()
