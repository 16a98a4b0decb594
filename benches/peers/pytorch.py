"""PyTorch on the cases, one JSON row per case: `pytorch.py --cases cases.jsonl > torch.jsonl`.

On a GPU this is device time, from a CUDA graph if the case can be captured in one, so that it excludes
Python's overhead. On the CPU it is the host's time."""
import json
import math
import time

import torch
import torch.nn.functional as F

import cases

# The size of the matrix product that measures the peak throughput.
PRODUCT = 8192
# The elements that are filled before a window, and how often: about 200 µs on a large GPU.
HEAD_START = 1 << 24
FILLS = 10
TYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def device_time(launch, rest):
    """Seconds per call on the GPU, the median of windows of many calls after `rest` seconds of rest, and whether
    a graph was used."""
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    scratch = torch.empty(HEAD_START, device="cuda")

    def window(work):
        # Keeps the device busy while the host starts the window, as in our timing.
        for _ in range(FILLS):
            scratch.normal_()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    calls = max(1, min(400, int(cases.WINDOW_S / max(window(launch), 1e-6))))

    def many():
        for _ in range(calls):
            launch()

    work = many
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            many()
        work = graph.replay
    except RuntimeError:  # work that allocates on the host cannot be captured
        torch.cuda.synchronize()
    time.sleep(rest)
    window(work)
    times = sorted(window(work) / calls for _ in range(cases.WINDOWS))
    return times[len(times) // 2], work is not many


class Peer:
    def __init__(self, device, compiled, tf32, rest):
        self.device, self.compiled, self.tf32, self.rest = device, compiled, tf32, rest

    def tensor(self, dims, case, scale=1.0):
        tensor = torch.randn(*dims, device=self.device) * scale
        tensor = tensor.to(TYPES[case["dtype"]])
        if case["layout"] == "nhwc" and len(dims) in (4, 5):
            last = torch.channels_last if len(dims) == 4 else torch.channels_last_3d
            tensor = tensor.contiguous(memory_format=last)
        return tensor

    def measure(self, case):
        if case.get("precision") == "tf32" and self.device != "cuda":
            raise ValueError("no tf32 on the processor")
        torch.backends.cudnn.allow_tf32 = self.tf32 or case.get("precision") == "tf32"
        launch = self.convolution(case) if case["kind"] == "conv" else self.pooling(case)
        if self.compiled and case["pass"] == "fwd":
            torch._dynamo.reset()
            launch = torch.compile(launch, mode="max-autotune-no-cudagraphs", dynamic=False)
        with torch.no_grad():
            if self.device != "cuda":
                time.sleep(self.rest)
                return cases.host_time(launch), {"clock": "host"}
            seconds, recorded = device_time(launch, self.rest)
        return seconds, {"clock": "device", "recorded": recorded}

    def pooling(self, case):
        if len(case["k"]) == 1 and case["pass"] == "bwd":
            # PyTorch has no such gradient in 1-D; that of images one pixel high is the same.
            unit = dict(size=1, k=1, s=1, p=0, d=1)
            case = case | {field: [one, *case[field]] for field, one in unit.items()}
        rank = len(case["k"])
        x = self.tensor([case["n"], case["c"], *case["size"]], case)
        y = [case["n"], case["c"], *cases.output_size(case)]
        window = dict(kernel_size=case["k"], stride=case["s"], padding=case["p"])
        if case["kind"] == "avgpool":
            operator = getattr(F, f"avg_pool{rank}d")
            if case["pass"] == "fwd":
                return lambda: operator(x, count_include_pad=False, **window)
            dy = self.tensor(y, case)
            gradient = getattr(torch.ops.aten, f"avg_pool{rank}d_backward")
            return lambda: gradient(dy, x, case["k"], case["s"], case["p"], False, False, None)
        operator = getattr(F, f"max_pool{rank}d")
        if case["pass"] == "fwd":
            indices = case.get("indices", False)
            return lambda: operator(x, dilation=case["d"], return_indices=indices, **window)
        _, winners = operator(x, dilation=case["d"], return_indices=True, **window)
        dy = self.tensor(y, case)
        gradient = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices_backward")
        return lambda: gradient(dy, x, case["k"], case["s"], case["p"], case["d"], False, winners)

    def convolution(self, case):
        rank, groups = len(case["k"]), case.get("groups", 1)
        x = self.tensor([case["n"], case["c"], *case["size"]], case)
        taps = case["c"] // groups * math.prod(case["k"])
        w = self.tensor([case["cout"], case["c"] // groups, *case["k"]], case, taps**-0.5)
        options = dict(stride=case["s"], padding=case["p"], dilation=case["d"], groups=groups)
        if case["pass"] == "fwd":
            operator = getattr(F, f"conv{rank}d")
            return lambda: operator(x, w, **options)
        dy = self.tensor([case["n"], case["cout"], *cases.output_size(case)], case)
        wanted = [case["pass"] in ("data", "dgrad"), case["pass"] in ("weight", "wgrad"), False]
        gradient = torch.ops.aten.convolution_backward
        steps = (case["s"], case["p"], case["d"], False, [0] * rank, groups)
        return lambda: gradient(dy, x, w, None, *steps, wanted)


    def products(self, all_cases):
        """A row with the measured peak for each type of the convolutions: a large matrix product."""
        kinds = {(case["dtype"], case.get("precision")) for case in all_cases if case["kind"] == "conv"}
        for dtype, precision in sorted(kinds, key=str):
            torch.backends.cuda.matmul.allow_tf32 = self.tf32 or precision == "tf32"
            a, b = (torch.randn(PRODUCT, PRODUCT, device=self.device).to(TYPES[dtype]) for _ in range(2))
            seconds, _ = device_time(lambda: torch.matmul(a, b), self.rest)
            tflops = cases.rounded(2 * PRODUCT**3 / seconds / 1e12)
            row = dict(ceiling="matrix", dtype=precision or dtype, tflops=tflops, backend="torch")
            print(json.dumps(row | dict(device=torch.cuda.get_device_name())), flush=True)


def main():
    parser = cases.arguments(__doc__)
    parser.add_argument("--compile", action="store_true", help="forward passes through torch.compile")
    parser.add_argument("--tf32", action="store_true", help="convolutions of f32 in TF32")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rest", type=float, default=0, help="seconds of rest before each case, as in `bench --rest`")
    asked = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    peer = "torch" + ("_compile" if asked.compile else "") + ("_tf32" if asked.tf32 else "")
    runner, asked_for = Peer(asked.device, asked.compile, asked.tf32, asked.rest), cases.read(asked.cases, asked.filter)
    if asked.device == "cuda" and not asked.compile:
        runner.products(asked_for)
    version = f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}" if asked.device == "cuda" else torch.__version__
    cases.run(peer, version, asked_for, runner.measure)


main()
