"""Makes an OME-Zarr pyramid of a volume that is larger than the memory that the work may take.

A volume in a Zarr array is read, reduced and written chunk by chunk, each level from the one before, so that memory holds a
few chunks per thread at any time: numpy's arrays, which are counted here, and windowpane's copies of one chunk per thread.
`mean` is for intensities, `mode` for labels.

    python ome_zarr_pyramid.py                        # makes a volume of 64 MiB, and its pyramid in 16 MiB
    python ome_zarr_pyramid.py --workers 2            # the same in two processes, for example one for each GPU
    python ome_zarr_pyramid.py --workers 2 --memory 512 --chunk 128 --shape 2048 1024 1024

Needs dask, zarr, and for `--workers` distributed.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import sys
import tracemalloc
from time import perf_counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from dask.diagnostics import ProgressBar
from windowpane import ndimage

MIB = 1 << 20


def make_volume(group: Any, shape: tuple[int, ...], edge: int, client: Any) -> None:
    """A volume of blobs, computed a chunk at a time."""

    def blobs(block_info: Any = None) -> Any:
        spans = block_info[None]["array-location"]
        z, y, x = np.ogrid[tuple(slice(*span) for span in spans)]
        waves = np.sin(z / 9) + np.sin(y / 11) + np.sin(x / 13)
        return ((waves + 3) * 10_000).astype(np.uint16)

    chunks = da.core.normalize_chunks(edge, shape)
    volume = da.map_blocks(blobs, chunks=chunks, dtype=np.uint16, meta=np.empty((0, 0, 0), np.uint16))
    write(group, "0", volume, edge, client)


def write(group: Any, name: str, level: Any, edge: int, client: Any) -> None:
    """Writes an array with chunks of its own, so that no two tasks write to the same one."""
    chunks = tuple(min(edge, extent) for extent in level.shape)
    target = group.create_array(name, shape=level.shape, chunks=chunks, dtype=level.dtype)
    stored = da.store(level.rechunk(chunks), target, lock=False, compute=False)
    if client is None:
        stored.compute()
        return
    from distributed import progress

    future = client.compute(stored)
    if sys.stderr.isatty():
        progress(future)
    future.result()


def add_levels(group: Any, func: ndimage.Reduction, edge: int, client: Any) -> int:
    """Writes levels of half the size until one chunk holds a level, and returns how many there are."""
    count = 1
    while max(group[str(count - 1)].shape) > edge:
        # Read again from the file: a chain of levels would compute the first ones again for each.
        above = da.from_zarr(group[str(count - 1)])
        write(group, str(count), ndimage.pyramid(above, 2, func, levels=2)[1], edge, client)
        count += 1
    return count


def describe(group: Any, count: int) -> None:
    """Adds the metadata of OME-Zarr 0.5: the size of an element of each level, and where the first one is."""
    levels = []
    for level in range(count):
        size = float(1 << level)
        scale = {"type": "scale", "scale": [size] * 3}
        shift = {"type": "translation", "translation": [(size - 1) / 2] * 3}
        levels.append({"path": str(level), "coordinateTransformations": [scale, shift]})
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    image = {"name": "blobs", "axes": axes, "datasets": levels}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}


def most_memory() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(options: argparse.Namespace, client: Any) -> None:
    group = zarr.open_group(options.output, mode="w", zarr_format=3)
    shape = tuple(options.shape)
    make_volume(group, shape, options.chunk, client)
    tracemalloc.start()
    start = perf_counter()
    count = add_levels(group, options.func, options.chunk, client)
    spent = perf_counter() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    describe(group, count)
    total = np.prod(shape) * 2 / MIB
    print(f"{count} levels of {total:.0f} MiB in {options.output}: {[group[str(i)].shape for i in range(count)]}")
    print(f"{spent:.1f} s")
    if client:
        for worker, most in enumerate(client.run(most_memory).values()):
            print(f"worker {worker} has had {most:.0f} of the {options.memory} MiB that it may have")
    else:
        print(f"at most {peak / MIB:.0f} MiB of numpy's arrays in memory")
        if peak > options.budget * MIB:
            sys.exit(f"more than the {options.budget} MiB that were allowed: choose smaller chunks or fewer threads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", default="pyramid.ome.zarr", help="the folder to write to")
    parser.add_argument("--shape", type=int, nargs=3, default=[128, 512, 512])
    parser.add_argument("--chunk", type=int, default=64, help="the edge of a chunk")
    parser.add_argument("--func", choices=["mean", "max", "min", "mode"], default="mean")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=16, help="MiB of numpy's arrays that threads may keep in memory")
    parser.add_argument("--workers", type=int, default=0, help="processes instead of threads")
    parser.add_argument("--memory", type=int, default=2048, help="MiB that each process may have")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        client = None
        if options.workers:
            from distributed import Client, LocalCluster

            limits = {"threads_per_worker": 1, "memory_limit": options.memory * MIB}
            cluster = LocalCluster(n_workers=options.workers, dashboard_address=None, **limits)
            stack.enter_context(cluster)
            client = stack.enter_context(Client(cluster))
        else:
            stack.enter_context(dask.config.set(scheduler="threads", num_workers=options.threads))
            if sys.stderr.isatty():
                stack.enter_context(ProgressBar(out=sys.stderr))
        run(options, client)


if __name__ == "__main__":
    main()
