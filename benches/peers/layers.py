"""The convolutions and poolings of networks from timm or torchvision, as cases: no weights are made or loaded.

    python benches/peers/layers.py resnet50 convnext_tiny --batch 32 > layers.jsonl
    windowpane bench --cases layers.jsonl
"""
import argparse
import inspect
import json
import sys

# Without this, torchvision would find the script pytorch.py beside this one where it looks for a module of that name.
sys.path.pop(0)

import torch
from torch import nn


def make(name):
    """A network by its name, from the first library that has it."""
    try:
        import timm

        if timm.is_model(name):
            return timm.create_model(name)
    except ImportError:
        pass
    from torchvision.models import get_model_builder

    builder = get_model_builder(name)
    # Networks for detection and segmentation download weights of the network that they are built on by default.
    parameters = inspect.signature(builder).parameters
    return builder(**{name: None for name in ("weights", "weights_backbone") if name in parameters})


def each(value, rank):
    return [value] * rank if isinstance(value, int) else list(value)


def layer(module, x, y):
    """The fields of a module's case; none if `bench` has no such case."""
    if isinstance(module, nn.modules.conv._ConvNd):
        if isinstance(module.padding, str):
            return None
        if isinstance(module, nn.modules.conv._ConvTransposeNd):
            x, y = y, x  # the data gradient of this convolution
        kind, dilation = "conv", module.dilation
        more = {"cout": y.shape[1], "groups": module.groups}
    elif type(module).__name__[:-2] in ("MaxPool", "AvgPool") and not module.ceil_mode:
        kind, dilation = type(module).__name__[:-2].lower(), getattr(module, "dilation", 1)
        more = {"indices": False}
    else:
        return None
    rank = x.dim() - 2
    window = [each(number, rank) for number in (module.kernel_size, module.stride, module.padding, dilation)]
    names = ("c", "size", "k", "s", "p", "d")
    return dict(zip(names, [x.shape[1], list(x.shape[2:]), *window])) | more | {"kind": kind}


def layers(name, shape):
    """The different layers of a network, in the order of a forward pass over one sample."""
    found = {}

    def hook(module, inputs, output):
        fields = layer(module, inputs[0], output)
        if fields:
            found[json.dumps(fields)] = fields

    with torch.device("meta"), torch.no_grad():
        network = make(name).eval()
        for module in network.modules():
            module.register_forward_hook(hook)
        network(torch.empty(1, *shape))
    return found.values()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", help="names, as timm and torchvision have them")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, nargs="+", default=[3, 224, 224], help="channels and extents of a sample")
    parser.add_argument("--dtype", default="bf16", choices=["f64", "f32", "f16", "bf16"])
    parser.add_argument("--layout", default="nhwc", choices=["nhwc", "nchw"])
    args = parser.parse_args()
    for name in args.networks:
        for fields in layers(name, args.size):
            window, size = ("x".join(map(str, fields[axis])) for axis in ("k", "size"))
            title = f"{name}_{window}_{fields['c']}_{fields.get('cout', fields['kind'])}_{size}"
            unusual = {"s": max(fields["s"]), "d": max(fields["d"]), "g": fields.get("groups", 1)}
            case = {"name": title + "".join(f"_{key}{of}" for key, of in unusual.items() if of > 1)}
            case |= fields | {"n": args.batch, "dtype": args.dtype, "layout": args.layout}
            for step in ("fwd", "dgrad", "wgrad") if case["kind"] == "conv" else ("fwd", "bwd"):
                indices = {"indices": step == "bwd"} if case["kind"] == "maxpool" else {}
                json.dump(case | indices | {"pass": step}, sys.stdout)
                print()


if __name__ == "__main__":
    main()
