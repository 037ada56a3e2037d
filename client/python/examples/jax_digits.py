"""A JAX loop: a linear classifier of Fashion-MNIST. Batches are JAX's own arrays, float32 NHWC. The last line is JSON."""

from __future__ import annotations

import json
import tempfile

import common
import jax
import jax.numpy as jnp

import feedd


def loss(parameters, images, labels):
    logits = images.reshape(len(images), -1) @ parameters["weights"] + parameters["bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


@jax.jit
def step(parameters, images, labels):
    value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
    return jax.tree.map(lambda p, g: p - 0.05 * g, parameters, gradients), value


@jax.jit
def right(parameters, images, labels):
    return ((images.reshape(len(images), -1) @ parameters["weights"] + parameters["bias"]).argmax(1) == labels).sum()


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.add_argument("--data", default=str(common.FASHION), help="folder of MNIST's four files, gzip'ed or not")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    config = common.write_config(common.digits_config(options.data), tempfile.mkdtemp())
    same = {"device": options.device, "dtype": "float32", "mean": 0.5, "std": 0.5, "layout": "nhwc",
            "socket": options.socket, "autostart": config}  # fmt: skip
    train = feedd.JaxLoader("train", batch_size=options.batch_size, **same)
    test = feedd.JaxLoader("test", batch_size=1000, order="sequential", **same)
    parameters = {"weights": jnp.zeros((784, 10)), "bias": jnp.zeros(10)}
    with common.Timer() as timer:
        for epoch in range(options.epochs):
            for images, labels in train:
                parameters, value = step(parameters, images, labels)
            print(f"epoch {epoch}: loss {value:.4f}", flush=True)
    correct = sum(int(right(parameters, images, labels)) for images, labels in test)
    samples = options.epochs * len(train) * options.batch_size
    print(
        json.dumps(
            {"accuracy": round(100 * correct / len(test.dataset), 2), "images_per_s": round(samples / timer.seconds)}
        )
    )


if __name__ == "__main__":
    main()
