"""Filters one picture on several devices at once: each gets a part of its rows, and as many more as windows reach.

    python picture_on_two_gpus.py                                  # on all CUDA devices, else on the processor
    python picture_on_two_gpus.py --devices cuda:0 cuda:1 --side 32768 --window 101
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np
import windowpane
from windowpane import ndimage


def draw(side: int) -> Any:
    """A picture of waves with bright points."""
    y, x = np.ogrid[:side, :side]
    waves = (np.sin(y / 30) + np.cos(x / 40) + 2) * 12_000
    points = np.random.default_rng(0).random((side, side), dtype=np.float32) > 0.999
    return np.where(points, 60_000, waves).astype(np.uint16)


def opening(picture: Any, window: int, device: str) -> Any:
    """What is left of a picture without what is smaller than the window: the points go, and the waves stay."""
    return ndimage.grey_opening(picture, window, device=device)


def split(picture: Any, window: int, devices: list[str]) -> Any:
    """The opening, a part of the rows on each device."""
    # An opening is two filters, one after the other.
    reach = 2 * (window // 2)
    edges = np.linspace(0, len(picture), len(devices) + 1, dtype=int).tolist()

    def part(start: int, end: int, device: str) -> Any:
        first, last = max(0, start - reach), min(len(picture), end + reach)
        found = opening(picture[first:last], window, device)
        return found[start - first : end - first]

    # The filters wait for their devices without Python's lock.
    with ThreadPoolExecutor(len(devices)) as pool:
        return np.concatenate(list(pool.map(part, edges, edges[1:], devices)))


def seconds(work: Any) -> tuple[float, Any]:
    """The time of the second call: the first also compiles kernels."""
    work()
    start = perf_counter()
    result = work()
    return perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", help="names as windowpane.devices() has them")
    parser.add_argument("--side", type=int, default=2048, help="of the picture")
    parser.add_argument("--window", type=int, default=31)
    options = parser.parse_args()
    found = [name for name in windowpane.devices() if name.startswith("cuda")]
    devices = options.devices or found or ["host", "host"]
    picture = draw(options.side)
    alone, whole = seconds(lambda: opening(picture, options.window, devices[0]))
    together, parts = seconds(lambda: split(picture, options.window, devices))
    print(f"{devices[0]} {alone * 1e3:.0f} ms; {' and '.join(devices)} {together * 1e3:.0f} ms")
    print(f"brightest before {picture.max()}, after {whole.max()}")
    if not np.array_equal(parts, whole):
        sys.exit("the parts differ from the whole")


if __name__ == "__main__":
    main()
