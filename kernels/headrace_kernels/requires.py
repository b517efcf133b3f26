"""What a launch demands of its tensors, said in sentences. It knows no kernel."""

from torch import Tensor

INDICES = ("torch.int32", "torch.int64")
FLOATS = ("torch.float32", "torch.bfloat16", "torch.float16")


def require(holds: bool, sentence: str) -> None:
    """Raises ValueError with `sentence` unless it holds."""
    if not holds:
        raise ValueError(sentence)


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    require(tuple(tensor.shape) == shape, f"{name} must have shape {shape}, not {tuple(tensor.shape)}.")


def require_dense(name: str, tensor: Tensor) -> None:
    require(tensor.is_contiguous(), f"{name} must be contiguous; its strides are {tensor.stride()}.")


def require_dense_rows(name: str, tensor: Tensor) -> None:
    """Only the last dimension must be dense, so that slices of a larger tensor need no copy."""
    require(tensor.stride(-1) == 1, f"{name} must be dense in its last dimension; its strides are {tensor.stride()}.")


def require_indices(name: str, tensor: Tensor) -> None:
    require(str(tensor.dtype) in INDICES, f"{name} must be int32 or int64, not {tensor.dtype}.")


def require_floats(**tensors: Tensor) -> None:
    """All of one floating dtype that the kernels know."""
    dtypes = {name: str(tensor.dtype) for name, tensor in tensors.items()}
    known = len(set(dtypes.values())) == 1 and next(iter(dtypes.values())) in FLOATS
    require(known, f"Tensors must share one dtype of float32, bfloat16 and float16, but are {dtypes}.")


def require_one_device(**tensors: Tensor) -> None:
    devices = {name: str(tensor.device) for name, tensor in tensors.items()}
    require(len(set(devices.values())) == 1, f"Tensors must be on one device, but are on {devices}.")
