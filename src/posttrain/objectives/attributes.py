"""Multi-attribute regression, gating, and decorrelation.

Shape legend: E responses, K attributes.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.objectives.shapes import require_one_shape


def rating_error(
    predicted_EK: Float[Tensor, "E K"], rated_EK: Float[Tensor, "E K"], known_EK: Bool[Tensor, "E K"]
) -> Float[Tensor, "E"]:
    """The mean over a response's rated attributes of the squared errors, in the ratings' unit squared.

        L_e = 1/|K_e| sum_{k in K_e} (a_ek - r_ek)^2

    The multi-objective regression of Wang et al. 2024 (https://arxiv.org/abs/2406.12845), where not every attribute has
    to be rated. `predicted_EK` carries the gradient; what `rated_EK` has where nothing is known makes no difference.
    Raises `ValueError` for unequal shapes, and for a response without any rating.

    Example:
        >>> import torch
        >>> known = torch.tensor([[True, False]])
        >>> rating_error(torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, torch.nan]]), known)
        tensor([4.])
    """
    require_one_shape("rating_error", predicted_EK=predicted_EK, rated_EK=rated_EK, known_EK=known_EK)
    count_E = known_EK.sum(1)
    if not bool((count_E > 0).all()):
        raise ValueError("a response without any rating teaches nothing")
    squared_EK = (predicted_EK - rated_EK.masked_fill(~known_EK, 0.0)).square()
    return squared_EK.masked_fill(~known_EK, 0.0).sum(1) / count_E


def shares(attributes_EK: Float[Tensor, "E K"], apart: int) -> Float[Tensor, "K"]:
    """How much of attribute j = `apart` has to be taken from each one so that nothing of it is left in them.

        l_k = cov(a_k, a_j) / var(a_j),   so that corr(a_k - l_k a_j, a_j) = 0 over the responses

    So Wang et al. 2024 (https://arxiv.org/abs/2406.12845) take verbosity out, with Spearman's correlation; Pearson's
    has a closed form. l_j is 1: of the attribute itself nothing is left. Where a_j does not vary there is nothing to
    take, and all are 0.

    Example:
        >>> import torch
        >>> shares(torch.tensor([[2.0, 1.0], [4.0, 2.0], [9.0, 3.0]]), apart=1)
        tensor([3.5000, 1.0000])
    """
    centred_EK = attributes_EK - attributes_EK.mean(0)
    spread = centred_EK[:, apart].square().sum()
    if spread == 0:
        return attributes_EK.new_zeros(attributes_EK.shape[1])
    return (centred_EK * centred_EK[:, [apart]]).sum(0) / spread
