"""onnxruntime on the forward cases, one JSON row per case: `ort.py --cases cases.jsonl > ort.jsonl`.

ONNX supports only channels first. With `--relayout` channels-last cases run as channels first; without it
they are refused. This is host time, of a session whose inputs and outputs are bound to device memory."""
import math

import numpy
import onnxruntime
from onnx import TensorProto, helper

import cases

TYPES = {
    "f64": (TensorProto.DOUBLE, numpy.float64),
    "f32": (TensorProto.FLOAT, numpy.float32),
    "f16": (TensorProto.FLOAT16, numpy.float16),
}


class Peer:
    def __init__(self, providers, threads, relayout):
        self.providers, self.relayout = providers, relayout
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = threads

    def measure(self, case):
        if case["pass"] != "fwd":
            raise ValueError("onnxruntime has no gradients")
        if case["dtype"] not in TYPES:
            raise ValueError(f"no {case['dtype']} here")
        if case["layout"] != "nchw" and not self.relayout:
            raise ValueError("ONNX supports only channels first; use --relayout to run the case that way")
        if case.get("precision") == "tf32" and "CUDAExecutionProvider" not in self.providers:
            raise ValueError("no tf32 on the processor")
        model, inputs = self.model(case)
        # By default it uses tf32 for every f32 convolution.
        tf32 = {"CUDAExecutionProvider": {"use_tf32": int(case.get("precision") == "tf32")}}
        providers = [(name, tf32.get(name, {})) for name in self.providers]
        session = onnxruntime.InferenceSession(model.SerializeToString(), self.options, providers=providers)
        where = "cuda" if "CUDAExecutionProvider" in session.get_providers() else "cpu"
        binding = session.io_binding()
        for name, array in inputs.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, where, 0)
            binding.bind_ortvalue_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name, where)
        launch = lambda: session.run_with_iobinding(binding)
        return cases.host_time(launch, binding.synchronize_outputs), {"clock": "host", "ran_as": "nchw"}

    def model(self, case):
        kind, numbers = TYPES[case["dtype"]]
        x = [case["n"], case["c"], *case["size"]]
        y = [case["n"], case.get("cout", case["c"]), *cases.output_size(case)]
        options = dict(kernel_shape=case["k"], strides=case["s"], pads=[*case["p"], *case["p"]])
        inputs = {"x": numpy.random.standard_normal(x).astype(numbers)}
        outputs = [helper.make_tensor_value_info("y", kind, y)]
        if case["kind"] == "conv":
            w = [case["cout"], case["c"] // case.get("groups", 1), *case["k"]]
            scale = math.prod(w[1:]) ** -0.5
            inputs["w"] = (numpy.random.standard_normal(w) * scale).astype(numbers)
            options.update(dilations=case["d"], group=case.get("groups", 1))
        elif case["kind"] == "avgpool":
            options.update(count_include_pad=0)
        else:
            options.update(dilations=case["d"])
            if case.get("indices"):
                outputs.append(helper.make_tensor_value_info("winners", TensorProto.INT64, y))
        operator = {"conv": "Conv", "avgpool": "AveragePool", "maxpool": "MaxPool"}[case["kind"]]
        node = helper.make_node(operator, list(inputs), [output.name for output in outputs], **options)
        given = [helper.make_tensor_value_info(name, kind, array.shape) for name, array in inputs.items()]
        graph = helper.make_graph([node], "case", given, outputs)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), inputs


def main():
    parser = cases.arguments(__doc__)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 means all")
    parser.add_argument("--relayout", action="store_true", help="run channels-last cases as channels first")
    parser.add_argument("--provider", action="append", help="CUDAExecutionProvider, CPUExecutionProvider, …")
    asked = parser.parse_args()
    providers = asked.provider or onnxruntime.get_available_providers()
    peer = Peer(providers, asked.threads, asked.relayout)
    cases.run("onnxruntime", onnxruntime.__version__, cases.read(asked.cases, asked.filter), peer.measure)


main()
