"""Makes assets/silero/silero_vad_16k.safetensors again: `make speech-vad-weights`.

The package has a file of that name, but its weights are those of an older network: its probabilities differ by up to 0.4
from what every ONNX and TorchScript file of the package says. The weights are therefore taken from
`silero_vad_16k_sequence.onnx`, under the names of that file and in PyTorch's order of the LSTM's gates.
"""

import sys

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save

import sources

WIDTH = 128


def torch_gates(blocks: np.ndarray) -> np.ndarray:
    """ONNX has input, output, forget, cell; PyTorch has input, forget, cell, output."""
    i, o, f, c = np.split(blocks, 4)
    return np.concatenate([i, f, c, o])


def main() -> None:
    model = onnx.load(sources.wheels() / "silero_vad" / "data" / "silero_vad_16k_sequence.onnx")
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    (lstm,) = (node for node in model.graph.node if node.op_type == "LSTM")
    _, inputs, recurrent, biases = lstm.input[:4]
    tensors = {"stft_conv.weight": weights["stft.forward_basis_buffer"]}
    for index in range(4):
        for part in ("weight", "bias"):
            tensors[f"conv{index + 1}.{part}"] = weights[f"encoder.{index}.{part}"]
    tensors["lstm_cell.weight_ih"] = torch_gates(weights[inputs][0])
    tensors["lstm_cell.weight_hh"] = torch_gates(weights[recurrent][0])
    tensors["lstm_cell.bias_ih"] = torch_gates(weights[biases][0, : 4 * WIDTH])
    tensors["lstm_cell.bias_hh"] = torch_gates(weights[biases][0, 4 * WIDTH :])
    for part in ("weight", "bias"):
        tensors[f"final_conv.{part}"] = weights[f"output.{part}"]
    target = sources.ROOT / "assets" / "silero" / "silero_vad_16k.safetensors"
    target.write_bytes(save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}))


if __name__ == "__main__":
    sys.exit(main())
