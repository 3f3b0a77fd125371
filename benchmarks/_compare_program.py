"""The program of compare_power.py: 100 steps of real work in ranges, one of which can be made slower.

    python benchmarks/_compare_program.py STEPS PERCENT SEED

Its batches come in ten lengths, in an order that SEED shuffles, and each length for a tenth of the steps: as with data
sorted into buckets, neighboring steps are alike, and every run has the same work in another order. `forward` does
PERCENT more of it.
"""

from __future__ import annotations

import json
import random
import sys

import numpy as np

import traceable

LAYERS = 4
"""How many times a step enters `forward` and `backward`."""

FORWARD, BACKWARD, TEXTS, OPTIMIZER = 200, 130, 12, 200
"""How much each range does: products, products, texts to parse, updates."""

LENGTHS = [0.98 + 0.04 * bucket / 9 for bucket in range(10)]
"""By what the work of the steps of a bucket is multiplied."""


def main() -> None:
    """Take the steps."""
    steps, percent, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    lengths = random.Random(seed).sample(LENGTHS, len(LENGTHS))
    texts = {length: "[" + '{"token": 1, "text": "word"},' * round(200 * length) + "null]" for length in LENGTHS}
    weights, batch = np.ones((32, 32)) / 32, np.ones((32, 32))
    state = np.zeros((32, 32))
    for number in traceable.steps(range(steps)):
        length = lengths[number * len(lengths) // steps]
        with traceable.annotate("load"):
            for _ in range(TEXTS):
                with traceable.annotate("parse"):
                    json.loads(texts[length])
        for _ in range(LAYERS):
            with traceable.annotate("forward"):
                for _ in range(round(FORWARD * length * (1 + percent / 100))):
                    batch = batch @ weights
        for _ in range(LAYERS):
            with traceable.annotate("backward"):
                for _ in range(round(BACKWARD * length)):
                    weights = weights - 1e-9 * (batch.T @ weights)
        with traceable.annotate("optimizer"):
            for _ in range(round(OPTIMIZER * length)):
                state = 0.9 * state + 0.1 * weights


if __name__ == "__main__":
    main()
