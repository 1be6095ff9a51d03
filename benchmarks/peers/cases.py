"""What is measured: operations with their shapes, the same computation in torch, and in the libraries it is compared with.

A Case names one of rowjit's operations. Its inputs have the names, shapes and dtypes that the operation declares, so
that every contender computes on the same values; `eager` and the peers are functions of them that give the outputs in
the operation's order.
"""

import dataclasses
import importlib
import typing

import torch
import torch.nn.functional as F

from kernel import DTYPES

EPS = 1e-6


@dataclasses.dataclass
class Op:
    name: str                # of rowjit's registry
    outputs: list            # by rowjit's names, in the order of the functions' results
    differentiated: list     # inputs whose gradients training wants
    eager: typing.Callable   # from a dict of inputs to one tensor or several
    options: dict = dataclasses.field(default_factory=dict)
    aten: typing.Callable = None    # the framework's own fused operation, where it is not what eager calls already
    liger: typing.Callable = None   # likewise; from the dict of inputs, the modules imported inside
    quack: typing.Callable = None
    one_pass: list = None           # a loss: inputs that its gradient overwrites in a joint graph
    one_pass_options: dict = dataclasses.field(default_factory=dict)
    same_gradients: dict = dataclasses.field(default_factory=dict)  # inputs by those whose gradient is theirs as well

    @property
    def written(self):
        """The inputs whose gradients rowjit writes: of two that are one tensor one, as its package for torch does."""
        return [name for name in self.differentiated if name not in self.same_gradients]


@dataclasses.dataclass
class Case:
    op: str
    rows: int
    columns: int
    set: str                 # "table", "sweep" or "small"
    dtype: str = "bf16"
    options: dict = dataclasses.field(default_factory=dict)

    @property
    def name(self):
        words = "".join(f" {key}={value}" for key, value in self.options.items())
        return f"{self.op} {self.rows}x{self.columns}{words} {self.dtype}"


def wide(x):
    """As the frameworks compute norms: in f32, and here in f64 where the exact result is asked for."""
    return x if x.dtype == torch.float64 else x.float()


def liger(module, function):
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), function).apply


def rms_norm(i, x=None):
    x = i["x"] if x is None else x
    h = wide(x)
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * i["weight"]


def add_rms_norm(i):
    s = i["x"] + i["residual"]
    return s, rms_norm(i, s)


def aten_add_rms_norm(i):
    s = i["x"] + i["residual"]
    return s, F.rms_norm(s, s.shape[-1:], i["weight"], EPS)


def liger_add_rms_norm(i):
    y, s = liger("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")(i["x"], i["residual"], i["weight"], EPS, 0.0,
                                                                       "llama", False)
    return s, y


def rotated_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rope_qk(i):
    cos, sin = i["cos"][:, None, :], i["sin"][:, None, :]
    return i["q"] * cos + rotated_half(i["q"]) * sin, i["k"] * cos + rotated_half(i["k"]) * sin


def liger_rope_qk(i):
    # It takes {batch, heads, tokens, width} views of what the projections write; one sequence is as many rows.
    q, k = (x.unsqueeze(0).transpose(1, 2) for x in (i["q"], i["k"]))
    q, k = liger("rope", "LigerRopeFunction")(q, k, i["cos"].unsqueeze(0), i["sin"].unsqueeze(0))
    return tuple(x.transpose(1, 2).squeeze(0) for x in (q, k))


def log_probabilities(i):
    return F.log_softmax(wide(i["student"]), -1), F.log_softmax(wide(i["teacher"]), -1)


def jsd(i):
    q, p = log_probabilities(i)
    m = torch.log((q.exp() + p.exp()) / 2)
    return ((p.exp() * (p - m) + q.exp() * (q - m)).sum(-1) / 2).mean()


def kl_div(i):
    q, p = log_probabilities(i)
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def liger_kl_div(i):
    q, p = log_probabilities(i)
    return liger("kl_div", "LigerKLDivLossFunction")(q, p, "batchmean", True)


def dynamic_tanh(i):
    return torch.tanh(i["alpha"] * i["x"]) * i["weight"] + i["bias"]


def flat_group_norm(function):
    """{rows, groups, channels, columns} as torch has it: {rows, groups·channels, columns}."""
    def run(i):
        x = i["x"]
        return function(x.flatten(1, 2), x.shape[1], i["weight"].flatten(), i["bias"].flatten()).view(x.shape)
    return run


def liger_group_norm(x, groups, weight, bias):
    return liger("group_norm", "LigerGroupNormFunction")(x, weight, bias, x.shape[1], groups, 1e-5)


def sparsemax(i):
    x = wide(i["x"])
    z = x - x.max(-1, keepdim=True).values
    ordered = torch.sort(z, -1, descending=True).values
    sums = ordered.cumsum(-1)
    k = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    support = (1 + k * ordered > sums).sum(-1, keepdim=True)
    threshold = (sums.gather(-1, support - 1) - 1) / support
    # Not clamp, whose derivative is 1 at its bound: an element that equals the threshold is in no support.
    return torch.relu(z - threshold).to(i["x"].dtype)


def quack(function):
    return getattr(importlib.import_module("quack"), function)


def quack_add_rms_norm(i):
    y, total = quack("rmsnorm")(i["x"], i["weight"], residual=i["residual"], eps=EPS, prenorm=True)
    return total, y


OPS = {op.name: op for op in [
    Op("rms_norm", ["y"], ["x", "weight"], rms_norm,
       aten=lambda i: F.rms_norm(i["x"], i["x"].shape[-1:], i["weight"], EPS),
       liger=lambda i: liger("rms_norm", "LigerRMSNormFunction")(i["x"], i["weight"], EPS, 0.0, "llama", True),
       quack=lambda i: quack("rmsnorm")(i["x"], i["weight"], eps=EPS)),
    Op("add_rms_norm", ["sum", "y"], ["x", "residual", "weight"], add_rms_norm,
       aten=aten_add_rms_norm, liger=liger_add_rms_norm, quack=quack_add_rms_norm,
       same_gradients={"residual": "x"}),
    Op("layer_norm", ["y"], ["x", "weight", "bias"],
       lambda i: F.layer_norm(i["x"], i["x"].shape[-1:], i["weight"], i["bias"], 1e-5),
       liger=lambda i: liger("layer_norm", "LigerLayerNormFunction")(i["x"], i["weight"], i["bias"], 1e-5)),
    Op("softmax", ["y"], ["x"], lambda i: F.softmax(i["x"], -1),
       liger=lambda i: liger("softmax", "LigerSoftmaxFunction")(i["x"]), quack=lambda i: quack("softmax")(i["x"])),
    Op("swiglu", ["y"], ["gate", "up"], lambda i: F.silu(i["gate"]) * i["up"],
       liger=lambda i: liger("swiglu", "LigerSiLUMulFunction")(i["gate"], i["up"])),
    Op("geglu", ["y"], ["gate", "up"], lambda i: F.gelu(i["gate"], approximate="tanh") * i["up"],
       liger=lambda i: liger("geglu", "LigerGELUMulFunction")(i["gate"], i["up"])),
    Op("rope_qk", ["q_out", "k_out"], ["q", "k"], rope_qk, liger=liger_rope_qk),
    Op("cross_entropy", ["loss"], ["logits"], lambda i: F.cross_entropy(wide(i["logits"]), i["target"]),
       aten=lambda i: F.cross_entropy(i["logits"], i["target"]),
       liger=lambda i: liger("cross_entropy", "LigerCrossEntropyFunction")(i["logits"], i["target"], None)[0],
       quack=lambda i: quack("cross_entropy")(i["logits"], i["target"], reduction="mean"),
       one_pass=["logits"], one_pass_options={"in_place": "true"}),
    Op("jsd", ["loss"], ["student"], jsd,
       liger=lambda i: liger("jsd", "LigerJSDFunction")(*log_probabilities(i)), one_pass=["student"]),
    Op("kl_div", ["loss"], ["student"], kl_div, liger=liger_kl_div, one_pass=["student"]),
    Op("dynamic_tanh", ["y"], ["x", "alpha", "weight", "bias"], dynamic_tanh,
       liger=lambda i: liger("dyt", "LigerDyTFunction")(i["x"], i["alpha"].reshape(1), i["weight"], i["bias"])),
    Op("group_norm", ["y"], ["x", "weight", "bias"],
       flat_group_norm(lambda x, groups, weight, bias: F.group_norm(x, groups, weight, bias, 1e-5)),
       liger=flat_group_norm(liger_group_norm)),
    Op("sparsemax", ["y"], ["x"], sparsemax, liger=lambda i: liger("sparsemax", "LigerSparsemaxFunction")(i["x"], -1)),
]}

SWEPT = ["rms_norm", "add_rms_norm", "layer_norm", "softmax", "swiglu", "cross_entropy", "dynamic_tanh"]
SWEPT_COLUMNS = [2 ** exponent for exponent in range(8, 19)]
SWEPT_ELEMENTS = 2 ** 27  # of one bf16 tensor: 256 MiB, past every cache

CASES = [
    Case("rms_norm", 16384, 4096, "table"),
    Case("rms_norm", 65536, 1024, "table"),
    Case("rms_norm", 8192, 8192, "table"),
    Case("rms_norm", 4096, 32768, "table"),
    Case("add_rms_norm", 16384, 4096, "table"),
    Case("layer_norm", 16384, 4096, "table"),
    Case("softmax", 16384, 4096, "table"),
    Case("softmax", 8192, 32768, "table"),
    Case("softmax", 2048, 131072, "table"),
    Case("swiglu", 16384, 14336, "table"),
    Case("geglu", 16384, 14336, "table"),
    Case("rope_qk", 32768, 128, "table", options={"heads": 32, "kv_heads": 8}),
    Case("cross_entropy", 8192, 128256, "table"),
    Case("cross_entropy", 16384, 32000, "table"),
    Case("jsd", 4096, 128256, "table"),
    Case("kl_div", 4096, 128256, "table"),
    Case("dynamic_tanh", 16384, 4096, "table"),
    Case("group_norm", 64, 4096, "table", options={"groups": 32, "channels": 16}),
    Case("sparsemax", 16384, 4096, "table"),
    *[Case(op, SWEPT_ELEMENTS // columns, columns, "sweep") for op in SWEPT for columns in SWEPT_COLUMNS],
    *[Case(op, 256, 4096, "small") for op in ("rms_norm", "layer_norm", "softmax", "swiglu")],
]


def random_inputs(graph, case, rows, device, generator):
    """Values for each input of the operation's graph. Random, never zeros: zeros save power, and so clock."""
    inputs = {}
    for info in graph.tensors:
        if info.is_output:
            continue
        name = info.name.decode()
        inputs[name] = random_tensor(name, graph.shape(name, rows), info.dtype, case, device, generator)
    return inputs


def random_tensor(name, shape, number_of_dtype, case, device, generator):
    dtype = DTYPES[number_of_dtype]
    if not dtype.is_floating_point:
        return torch.randint(0, case.columns, shape, dtype=dtype, device=device, generator=generator)
    values = torch.empty(shape, dtype=torch.float32 if device == "cpu" else dtype, device=device)
    values.normal_(generator=generator)
    if name in ("cos", "sin"):
        values = torch.cos(values) if name == "cos" else torch.sin(values)
    return values.to(dtype)
