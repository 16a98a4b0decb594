"""Filters and downsampling of pictures and volumes, `windowpane.ndimage` beside the libraries that people use for them.

    python benches/peers/filters.py --device cuda > rows.jsonl     # arrays that are on a GPU, and the same from the host
    python benches/peers/filters.py --device cpu --side 2048       # on the processor

Times are the host's, of a call whose result is complete, the median of several. Each result is compared with the first
library's. A library that is not installed, or lacks a case, has no row."""
import argparse
import json
import statistics
import sys
import time
import warnings

import numpy as np

import windowpane
from windowpane import ndimage

LEAST, MOST = 3, 25


def module(name):
    """A module, or nothing if it cannot be imported here."""
    try:
        return __import__(name, fromlist=["_"])
    except Exception:
        return None


class Case:
    def __init__(self, what, shape, dtype, size):
        self.what, self.shape, self.dtype, self.size = what, shape, dtype, size
        generator = np.random.default_rng(7)
        if what == "mode":
            # Labels: regions of a few voxels.
            coarse = generator.integers(0, 200, [extent // 4 for extent in shape])
            x = np.kron(coarse, np.ones([4] * len(shape), coarse.dtype))
        elif dtype == "float32":
            x = generator.random(shape, dtype=np.float32)
        else:
            x = generator.integers(0, np.iinfo(dtype).max, shape, endpoint=True)
        self.x = x.astype(dtype)

    def key(self):
        return {"case": self.what, "shape": list(self.shape), "dtype": self.dtype, "size": self.size}


def cases(side, depth):
    picture, volume = (side, side), (depth,) * 3
    for dtype in ("uint8", "uint16", "float32"):
        for size in (15, 31, 101):
            yield Case("max", picture, dtype, size)
            yield Case("box", picture, dtype, size)
    for dtype in ("uint8", "uint16"):
        for size in (3, 7, 15):
            yield Case("max", volume, dtype, size)
            yield Case("box", volume, dtype, size)
        yield Case("mean", volume, dtype, 2)
        yield Case("mode", volume, dtype, 2)


def ours(case):
    """The function of an array that this case asks for."""
    return {
        "max": lambda x: ndimage.maximum_filter(x, case.size),
        "box": lambda x: ndimage.uniform_filter(x, case.size),
        "mean": lambda x: ndimage.pyramid(x, case.size, "mean", 2)[1],
        "mode": lambda x: ndimage.block_reduce(x, case.size, "mode"),
    }[case.what]


def scipys(case, scipy):
    """The same in `scipy.ndimage`, or in cupyx's, which has the same names."""
    if case.what in ("max", "box"):
        name = {"max": "maximum_filter", "box": "uniform_filter"}[case.what]
        return lambda x: getattr(scipy, name)(x, case.size)
    return None


def blocks_mean(case):
    """The mean of blocks as people write it with an array library."""
    if case.what != "mean":
        return None
    split = [part for extent in case.shape for part in (extent // case.size, case.size)]
    axes = tuple(range(1, 2 * len(case.shape), 2))
    return lambda x: x.reshape(split).mean(axis=axes).round().astype(x.dtype)


def torchs(case, torch, compiled):
    """The same in PyTorch, whose poolings take floating-point numbers."""
    if case.what == "mode":
        return None
    rank, functional = len(case.shape), torch.nn.functional
    kind = "max" if case.what == "max" else "avg"
    pool = getattr(functional, f"{kind}_pool{rank}d")
    dtype = getattr(torch, case.dtype)

    def work(x):
        y = x.float()[None, None]
        if case.what == "mean":
            return pool(y, case.size).round().to(dtype)[0, 0]
        if case.what == "box":
            return pool(y, case.size, 1, case.size // 2, count_include_pad=False).to(dtype)[0, 0]
        return pool(y, case.size, 1, case.size // 2).to(dtype)[0, 0]

    if not compiled:
        return work
    torch._dynamo.reset()
    return torch.compile(work, dynamic=False)


def kornias(case, torch, kornia):
    """The same in kornia, which has pictures only. Its morphology holds a copy of the picture for every tap."""
    if len(case.shape) != 2:
        return None
    dtype = getattr(torch, case.dtype)
    if case.what == "max":
        taps = torch.ones(case.size, case.size, device="cuda")
        work = lambda y: kornia.morphology.dilation(y, taps)
    else:
        work = lambda y: kornia.filters.box_blur(y, case.size, "reflect", separable=True)
    return lambda x: work(x.float()[None, None]).to(dtype)[0, 0]


def opencvs(case, cv2):
    """The same in OpenCV, which has pictures only."""
    if len(case.shape) != 2:
        return None
    if case.what == "max":
        kernel = np.ones((case.size, case.size), np.uint8)
        return lambda x: cv2.dilate(x, kernel)
    return lambda x: cv2.blur(x, (case.size, case.size), borderType=cv2.BORDER_REFLECT)


def skimages(case, measure):
    if case.what != "mean":
        return None
    return lambda x: measure.block_reduce(x, case.size, np.mean).round().astype(x.dtype)


def tinybrains(case, tinybrain):
    factor = (case.size,) * len(case.shape)
    if case.what == "mean":
        return lambda x: tinybrain.downsample_with_averaging(x, factor)[0]
    if case.what == "mode":
        return lambda x: tinybrain.downsample_segmentation(x, factor)[0]
    return None


def tensorstores(case, tensorstore):
    if case.what not in ("mean", "mode"):
        return None
    factors = [case.size] * len(case.shape)
    return lambda x: tensorstore.downsample(tensorstore.array(x), factors, case.what).read().result()


def peers(device, case):
    """The name of each library, how an array gets to it, and its function."""
    if device == "cuda":
        cupy, torch = module("cupy"), module("torch")
        cupys = scipys(case, module("cupyx.scipy.ndimage")) or blocks_mean(case)
        yield "windowpane", cupy.asarray, ours(case)
        yield "cupyx", cupy.asarray, cupys
        yield "windowpane, from the host", np.asarray, ours(case)
        there_and_back = cupys and (lambda x: cupy.asnumpy(cupys(cupy.asarray(x))))
        yield "cupyx, from the host", np.asarray, there_and_back
        if torch:
            there = lambda x: torch.from_numpy(x).cuda()
            yield "torch", there, torchs(case, torch, False)
            yield "torch, compiled", there, torchs(case, torch, True)
            if kornia := module("kornia"):
                yield "kornia", there, kornias(case, torch, kornia)
        return
    yield "windowpane", np.asarray, ours(case)
    for name, function in (("cv2", opencvs), ("scipy.ndimage", scipys), ("skimage.measure", skimages),
                           ("tinybrain", tinybrains), ("tensorstore", tensorstores)):
        library = module(name)
        if library:
            # tinybrain reads other arrays as their transposes.
            here = np.asfortranarray if name == "tinybrain" else np.asarray
            yield name.partition(".")[0], here, function(case, library)


def seconds(work, x, wait, rest):
    """The median time of a call, repeated for so many seconds."""
    work(x)
    wait()
    times = []
    while len(times) < LEAST or (len(times) < MOST and sum(times) < rest):
        start = time.perf_counter()
        work(x)
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fetched(y):
    """A result as numpy's."""
    y = y.cpu() if hasattr(y, "cpu") else y
    return y.get() if hasattr(y, "get") else np.asarray(y)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--side", type=int, default=8192, help="of pictures")
    parser.add_argument("--depth", type=int, default=512, help="of volumes, on each axis")
    parser.add_argument("--filter", default="", help="only cases that contain this text, as `max/uint8/15`")
    parser.add_argument("--skip", default="", help="libraries to leave out, by semicolon")
    parser.add_argument("--rest", type=float, default=1.0, help="seconds to repeat each case in each library")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    wait = lambda: None
    if options.device == "cuda":
        wait = __import__("cupy").cuda.runtime.deviceSynchronize
    print(f"windowpane {windowpane.__version__} on {windowpane.devices()}", file=sys.stderr)
    skipped = options.skip.split(";")
    for case in cases(options.side, options.depth):
        if options.filter not in f"{case.what}/{case.dtype}/{case.size}":
            continue
        expected = None
        for name, here, work in peers(options.device, case):
            if work is None or name in skipped:
                continue
            row = {**case.key(), "library": name}
            try:
                x = here(case.x)
                y = fetched(work(x))
                expected = y if expected is None else expected
                difference = np.abs(y.astype(np.float64) - expected)
                row["differs"] = float((difference > 1e-5 * np.abs(expected)).mean())
                row["largest"] = float(difference.max())
                row["ms"] = round(seconds(work, x, wait, options.rest) * 1e3, 4)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"[:200]
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
