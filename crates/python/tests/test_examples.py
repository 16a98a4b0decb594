"""The examples, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from windowpane import ndimage

FOLDER = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str, folder: Path) -> Any:
    command = [sys.executable, "-W", "error", str(FOLDER / name), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_every_example_has_a_test() -> None:
    names = sorted(path.name for path in FOLDER.glob("*.py"))
    assert names == ["ome_zarr_pyramid.py", "picture_on_two_gpus.py"]


@pytest.mark.parametrize(("func", "workers"), [("mean", 0), ("mode", 2)])
def test_a_pyramid_of_a_volume_larger_than_memory(func: Any, workers: int, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    pytest.importorskip("distributed" if workers else "dask")
    shape = (96, 200, 130)
    options = ["--shape", *map(str, shape), "--chunk", "32", "--func", func, "--workers", str(workers)]
    # The volume has 4.8 MiB.
    ran = run("ome_zarr_pyramid.py", "x.zarr", *options, "--budget", "4", folder=tmp_path)
    assert ran.returncode == 0 and "4 levels of 5 MiB" in ran.stdout and ran.stderr == "", ran
    group = zarr.open_group(tmp_path / "x.zarr", mode="r")
    whole = ndimage.pyramid(group["0"][:], 2, func, levels=4)
    for level, expected in enumerate(whole):
        np.testing.assert_array_equal(group[str(level)][:], expected)
    assert whole[0].shape == shape and len(np.unique(whole[0])) > 1000
    (image,) = group.attrs["ome"]["multiscales"]
    assert [own["path"] for own in image["datasets"]] == ["0", "1", "2", "3"]
    scale, shift = image["datasets"][2]["coordinateTransformations"]
    assert scale["scale"] == [4, 4, 4] and shift["translation"] == [1.5, 1.5, 1.5]


def test_a_picture_in_parts(tmp_path: Path) -> None:
    options = ["--devices", "host", "host", "host", "--side", "300", "--window", "9"]
    ran = run("picture_on_two_gpus.py", *options, folder=tmp_path)
    assert ran.returncode == 0 and ran.stderr == "", ran
    assert "brightest before 60000, after 4" in ran.stdout, ran


def test_workers_stay_within_their_memory(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    pytest.importorskip("distributed")
    options = ["--shape", "64", "64", "64", "--chunk", "32", "--workers", "1", "--memory", "400"]
    ran = run("ome_zarr_pyramid.py", "x.zarr", *options, folder=tmp_path)
    assert ran.returncode == 0 and "of the 400 MiB that it may have" in ran.stdout, ran


def test_a_budget_that_is_too_small_is_told(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    pytest.importorskip("dask")
    ran = run("ome_zarr_pyramid.py", "--shape", "64", "64", "64", "--chunk", "32", "--budget", "0", folder=tmp_path)
    assert ran.returncode == 1 and "smaller chunks" in ran.stderr
