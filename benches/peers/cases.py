"""Shared by the peers: the cases as `windowpane bench` reads them, timing, and rows in its format."""
import argparse
import json
import math
import pathlib
import statistics
import sys
import time

WINDOW_S = 2.5e-3
WINDOWS = 15
FEWEST_WINDOWS = 5


def arguments(description):
    """The arguments that every peer takes; peers add their own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cases", type=pathlib.Path, required=True, help="one JSON object per line")
    parser.add_argument("--filter", default="", help="only cases whose name/kind/pass/dtype/layout contains this text")
    return parser


def short(path):
    """A path, or a part of one, with the short names of passes."""
    names = {"forward": "fwd", "backward": "bwd"}
    return "/".join(names.get(part, part) for part in path.split("/"))


def read(path, text):
    """The cases of a file whose path contains this text."""
    cases = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    for case in cases:
        case["pass"] = short(case["pass"])
    found = [case for case in cases if short(text) in "/".join(key(case))]
    if not found:
        sys.exit(f"{path}: none of the {len(cases)} cases has `{text}` in it")
    return found


def key(case):
    return [case[field] for field in ("name", "kind", "pass", "dtype", "layout")]


def output_size(case):
    """The spatial extents of the result; the padding is the same on both sides."""
    axes = zip(case["size"], case["k"], case["s"], case["p"], case["d"])
    return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes]


def traffic(case):
    """The least bytes that the case moves, and its additions and multiplications if it is a convolution."""
    size = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}[case["dtype"]]
    outputs = case["n"] * case.get("cout", case["c"]) * math.prod(output_size(case))
    inputs = case["n"] * case["c"] * math.prod(case["size"])
    if case["kind"] == "conv":
        taps = math.prod(case["k"]) * case["c"] // case.get("groups", 1)
        return (inputs + case["cout"] * taps + outputs) * size, 2 * outputs * taps
    indices = case["kind"] == "maxpool" and (case["pass"] == "bwd" or case.get("indices"))
    return (inputs + outputs) * size + (outputs * 4 if indices else 0), None


def host_time(launch, wait=lambda: None):
    """Seconds per call by the host's clock: the median of windows of many calls."""
    launch()
    wait()

    def window(calls):
        start = time.perf_counter()
        for _ in range(calls):
            launch()
        wait()
        return (time.perf_counter() - start) / calls

    calls = max(1, min(400, int(WINDOW_S / max(window(3), 1e-9))))
    windows = WINDOWS if calls > 1 else FEWEST_WINDOWS
    return statistics.median(window(calls) for _ in range(windows))


def run(peer, version, cases, measure):
    """Times every case with `measure`, which returns seconds and further fields, and prints a row for each."""
    for case in cases:
        row = dict(zip(("name", "kind", "pass", "dtype", "layout"), key(case)), peer=peer, version=version)
        row["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            seconds, more = measure(case)
            moved, operations = traffic(case)
            row.update(ms=rounded(seconds * 1e3), gbs=rounded(moved / seconds / 1e9), **more)
            if operations:
                row["tflops"] = rounded(operations / seconds / 1e12)
        except Exception as error:  # a case that fails gets a row with its error
            row["error"] = " ".join(str(error).split())[:200] or type(error).__name__
        print(json.dumps(row), flush=True)


def rounded(number):
    return float(f"{number:.5g}")
