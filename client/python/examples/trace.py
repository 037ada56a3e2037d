"""A trace of torch.profiler in which feedd's part is named: the range feedd.next, in it the copy of the labels, and on a
GPU the kernel that normalises. Writes a file for chrome://tracing or Perfetto, and prints the rows. The last line is JSON.

Under torch.autograd.profiler.emit_nvtx() the same ranges are NVTX's, for Nsight Systems.
"""

from __future__ import annotations

import json
import tempfile

import common
import torch
import torch.nn.functional as F

import feedd


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.add_argument("--data", default=str(common.FASHION), help="folder of MNIST's four files, gzip'ed or not")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--trace", default="feedd-trace.json", help="file to write")
    options = parser.parse_args()
    config = common.write_config(common.digits_config(options.data), tempfile.mkdtemp())
    device = torch.device(options.device)
    train = feedd.DataLoader("train", batch_size=64, device=device, dtype=torch.float32, mean=0.5, std=0.5,
                             socket=options.socket, autostart=config)  # fmt: skip
    model = common.cnn().to(device)
    loop = iter(train)
    for _ in range(3):  # warm
        F.cross_entropy(model(next(loop)[0]), torch.zeros(64, dtype=torch.long, device=device)).backward()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(options.steps):
            images, labels = next(loop)
            F.cross_entropy(model(images), labels).backward()
    profile.export_chrome_trace(options.trace)
    ours = [
        event for event in profile.key_averages() if any(w in event.key for w in ("feedd", "normalize", "Memcpy DtoD"))
    ]
    for event in ours:
        print(f"{event.key[:90]:90} {event.count:5} x {event.cpu_time:8.1f} us on the CPU")
    print(json.dumps({"trace": options.trace, "named": sorted({event.key.split("(")[0] for event in ours})}))


if __name__ == "__main__":
    main()
