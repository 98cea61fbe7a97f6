"""Write this folder's files anew: ten small networks, by PyTorch's two exporters, as readers have them.

    python tests/onnx_io/exported/export.py

needs torch, onnx and onnxscript. The names say what a network is like and which exporter wrote it.
"""

import sys
import warnings
from pathlib import Path

import onnx
import torch
from torch import nn

HERE = Path(__file__).parent


def unit(c, c_out, stride=1, activation=nn.ReLU):
    return nn.Sequential(nn.Conv2d(c, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out), activation())


class Block(nn.Module):
    """Two convolutions and a shortcut, as in a ResNet."""

    def __init__(self, c, c_out, stride):
        super().__init__()
        self.body = nn.Sequential(unit(c, c_out, stride), nn.Conv2d(c_out, c_out, 3, 1, 1), nn.BatchNorm2d(c_out))
        self.short = nn.Conv2d(c, c_out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


class Fire(nn.Module):
    """Windows of two sizes side by side, as in a SqueezeNet."""

    def __init__(self, c, squeezed, c_out):
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(c, squeezed, 1), nn.ReLU())
        self.one, self.three = nn.Conv2d(squeezed, c_out, 1), nn.Conv2d(squeezed, c_out, 3, padding=1)

    def forward(self, x):
        x = self.squeeze(x)
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1)


class UNet(nn.Module):
    """Down, up again, and what was there before beside it."""

    def __init__(self):
        super().__init__()
        self.first, self.down, self.up = unit(1, 6), unit(6, 8, 2), nn.ConvTranspose2d(8, 6, 2, 2)
        self.last = nn.Sequential(unit(12, 6), nn.Conv2d(6, 2, 1))

    def forward(self, x):
        early = self.first(x)
        return self.last(torch.cat([early, self.up(self.down(early))], 1))


class Rows(nn.Module):
    """A convolution whose images become rows as older code does it, by sizes that are computed."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 4, (3, 5), padding=(1, 2), dilation=1), nn.Linear(4 * 64, 5)

    def forward(self, x):
        x = torch.tanh(self.conv(x))
        return torch.softmax(self.linear(x.view(x.size(0), -1)), dim=1)


def networks():
    """Return (network, shape of an example) by name."""
    lenet = nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 30), nn.ReLU(), nn.Linear(30, 10)),
    )
    resnet = nn.Sequential(
        *(unit(3, 8, 2), nn.MaxPool2d(3, 2, 1), Block(8, 8, 1), Block(8, 16, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )
    style = nn.Sequential(
        *(nn.ReflectionPad2d(2), nn.Conv2d(3, 6, 5), nn.InstanceNorm2d(6, affine=True), nn.ReLU()),
        *(nn.Upsample(scale_factor=2, mode="nearest"), nn.ReflectionPad2d(1), nn.Conv2d(6, 3, 3), nn.Tanh()),
    )
    squeeze = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2), Fire(8, 4, 6), Fire(12, 4, 8)),
        *(nn.Dropout(), nn.Conv2d(16, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    sharp = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 9, 3, padding=1), nn.PixelShuffle(3))
    late = nn.Sequential(nn.Conv2d(2, 6, 3), nn.LeakyReLU(0.1), nn.BatchNorm2d(6), nn.AvgPool2d(2), nn.Flatten(1))
    mobile = nn.Sequential(unit(3, 8, 2, nn.ReLU6), unit(8, 12, 1, nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    mlp = nn.Sequential(nn.Linear(20, 16), nn.Sigmoid(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    return {
        "lenet": (lenet, (1, 28, 28)),
        "resnet": (resnet, (3, 33, 32)),
        "style": (style, (3, 12, 10)),
        "squeezenet": (squeeze, (3, 32, 32)),
        "sharpen": (sharp, (1, 9, 8)),
        "late-norm": (nn.Sequential(late, nn.Linear(6 * 25, 4)), (2, 12, 12)),
        "relu6": (nn.Sequential(mobile, nn.Dropout(0.2), nn.Linear(12, 4)), (3, 16, 16)),
        "mlp": (mlp, (20,)),
        "rows": (Rows(), (2, 8, 8)),
        "unet": (UNet(), (1, 16, 16)),
    }


def export(network, shape, path, new):
    """Write a network by the newer exporter, or by the one of TorchScript."""
    x = torch.randn(2, *shape)
    batch = torch.export.Dim("n", min=1, max=1024)
    newer = dict(dynamo=True, dynamic_shapes=({0: batch},), external_data=False, verbose=False)
    older = dict(dynamo=False, dynamic_axes={"x": {0: "n"}}, opset_version=17)
    torch.onnx.export(network, (x,), path, input_names=["x"], **(newer if new else older))
    model = onnx.load(path)  # which says where the code lay that each node is from
    graph = model.graph
    for each in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        each.ClearField("metadata_props")
        each.ClearField("doc_string")
    onnx.save(model, path)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for number, (name, (network, shape)) in enumerate(networks().items()):
        torch.manual_seed(number)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 2)
                nn.init.normal_(module.running_mean)
        new = number % 2 == 1
        path = HERE / f"{name}-{'dynamo' if new else 'torchscript'}.onnx"
        export(network.eval(), shape, str(path), new)
        print(f"{path.name}: {path.stat().st_size:,} bytes", file=sys.stderr)
