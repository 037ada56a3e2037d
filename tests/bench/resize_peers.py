#!/usr/bin/env python3
"""resize_peers.py [RUNS] - what bench_resize measures, by Pillow and OpenCV: the same sizes, in the same format.

Pillow's BILINEAR is what resize.c computes. OpenCV's INTER_AREA is its way to scale down without aliasing (a box filter;
scaling up it is linear). INTER_LINEAR looks at four pixels whatever the scale, so it does less. OpenCV runs on one
thread. Images are there, decoded and cropped, before time is taken. Needs numpy, pillow and opencv-python-headless.
"""
import statistics
import sys
import time

import cv2
import numpy
import PIL
from PIL import Image

SIDE = 224
RUN_NS = 50_000_000


def crops(image):
    """The formulas of resize.c."""
    height, width = image.shape[:2]
    parts = []
    for i in range(16):
        w, h = 100 + i * 137 % 380, 80 + i * 89 % 280
        x, y = i * 53 % (width - w + 1), i * 71 % (height - h + 1)
        parts.append(image[y : y + h, x : x + w])
    return parts


def measure(scale, images, runs):
    """Nanoseconds for all images, each run's."""
    times = []
    for image in images:
        scale(image)
    for _ in range(runs):
        start = now = time.process_time_ns()
        count = 0
        while now - start < RUN_NS:
            for image in images:
                scale(image)
            count += 1
            now = time.process_time_ns()
        times.append((now - start) / count)
    return times


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    cv2.setNumThreads(1)
    noise = (numpy.arange(500 * 375 * 3, dtype=numpy.uint32) * numpy.uint32(2654435761) >> 13).astype(numpy.uint8)
    photo = noise.reshape(375, 500, 3)
    jobs = {"500x375": [photo], "crops of it": crops(photo), "256x256": [noise[: 256 * 256 * 3].reshape(256, 256, 3)],
            "100x100": [noise[: 100 * 100 * 3].reshape(100, 100, 3)]}  # fmt: skip
    peers = {
        "pillow": lambda image: image.resize((SIDE, SIDE), Image.Resampling.BILINEAR),
        "cv2 area": lambda image: cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA),
        "cv2 linear": lambda image: cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR),
    }
    print(f"Pillow {PIL.__version__}, OpenCV {cv2.__version__}")
    print(f"RGB to {SIDE} x {SIDE}, one thread, median (least) of {runs} runs")
    print(f"{'image':12} {'by':12} {'us/image':>18} {'ns/output px':>14} {'ns/input px':>14}")
    for job, images in jobs.items():
        pixels = sum(image.shape[0] * image.shape[1] for image in images)
        for name, scale in peers.items():
            inputs = [Image.fromarray(image) for image in images] if name == "pillow" else images
            times = measure(scale, inputs, runs)
            median, least, count = statistics.median(times), min(times), len(images)
            print(f"{job:12} {name:12} {median / count / 1e3:9.1f} ({least / count / 1e3:6.1f})"
                  f" {median / count / SIDE**2:14.2f} {median / pixels:14.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
