"""Guard against silent broadcasting."""

from torch import Tensor


def require_one_shape(where: str, **tensors: Tensor) -> None:
    """Raise `ValueError` unless all `tensors` have the same shape; the message names each with its shape.

    Example:
        >>> import torch
        >>> require_one_shape("k1", logprobs=torch.zeros(3), reference=torch.zeros(3))
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(
            f"{where} needs tensors of one shape; got {given}. "
            "For one value per sequence, pass it once per token: values_B[row_N]."
        )
