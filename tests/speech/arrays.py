"""Stands in for PyTorch, on numpy, as far as openai/whisper's decoding, word timing and transcription loop use it.

They are plain bookkeeping over small arrays; with this their own code makes the fixtures, and nobody has to fetch PyTorch.
"""

import sys
import types

import numpy as np


class Tensor(np.ndarray):
    """An array with the methods of torch.Tensor that are called."""

    is_cuda = False

    def float(self):
        return self.astype(np.float32)

    def double(self):
        return self.astype(np.float64)

    def to(self, *_):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)

    def numel(self):
        return self.size

    def ge(self, other):
        return self >= other

    def add_(self, other):
        self += other
        return self

    def unsqueeze(self, _):
        return self[None]

    def nonzero(self):
        return tensor(np.argwhere(np.asarray(self)))

    def sort(self):
        return (tensor(np.sort(np.asarray(self), axis=-1)),)

    def unfold(self, _, size, __):
        return tensor(np.lib.stride_tricks.sliding_window_view(np.asarray(self), size, axis=-1))

    def topk(self, count):
        order = np.argsort(-np.asarray(self), kind="stable")[:count]
        return self[order], tensor(order)

    def softmax(self, dim):
        weights = np.exp(np.asarray(self) - np.asarray(self).max(axis=dim, keepdims=True))
        return tensor(weights / weights.sum(axis=dim, keepdims=True))

    def logsumexp(self, dim):
        values = np.asarray(self)
        largest = np.maximum(values.max(axis=dim, keepdims=True), np.finfo(np.float32).min)
        with np.errstate(divide="ignore"):
            return tensor(largest.squeeze(dim) + np.log(np.exp(values - largest).sum(axis=dim)))


def tensor(values, device=None, **_):
    array = np.asarray(values)
    return (array.astype(np.int64) if array.dtype == object else array).view(Tensor)


def log_softmax(values, dim):
    return tensor(np.asarray(values) - np.asarray(values.logsumexp(dim))[..., None])


def std_mean(values, dim, keepdim, unbiased):
    values = np.asarray(values)
    return tensor(values.std(axis=dim, keepdims=keepdim)), tensor(values.mean(axis=dim, keepdims=keepdim))


def pad(values, widths, mode="constant", value=0):
    around = [(0, 0)] * (values.ndim - 1) + [widths[:2]]
    extra = {"constant_values": value} if mode == "constant" else {}
    return tensor(np.pad(np.asarray(values), around, mode=mode, **extra))


class NoGrad:
    """torch.no_grad, as a decorator and around statements."""

    def __call__(self, function):
        return function

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def install() -> None:
    """Puts the stand-ins where `import` finds them, before anything of whisper is imported."""

    def module(name: str, **names):
        found = sys.modules[name] = types.ModuleType(name)
        found.__dict__.update(names)
        return found

    functional = module("torch.nn.functional", log_softmax=log_softmax, pad=pad)
    distributions = module("torch.distributions", Categorical=None)
    module(
        "torch",
        Tensor=Tensor,
        nn=module("torch.nn", functional=functional),
        distributions=distributions,
        tensor=tensor,
        stack=lambda arrays: tensor(np.stack(arrays)),
        where=lambda condition: tuple(tensor(found) for found in np.where(np.asarray(condition))),
        std_mean=std_mean,
        no_grad=NoGrad,
        device=str,
        float16=np.float16,
        float32=np.float32,
        cuda=types.SimpleNamespace(is_available=lambda: False),
    )
    # Compilers and progress bars that fixtures do without.
    module("numba", jit=lambda **_: lambda function: function)
    module("tiktoken", Encoding=object)
    module("tqdm", tqdm=Silent)


class Silent:
    """A progress bar that shows none."""

    def __init__(self, **_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def update(self, _):
        pass
