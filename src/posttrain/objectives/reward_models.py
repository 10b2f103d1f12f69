"""Reward models beside pairwise.py: centred scores, length debiasing (ODIN), ratings, labels of steps, implicit ones.

Shape legend: B pairs, E responses of a batch, D hidden width, K attributes, S steps, N tokens of several responses.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from posttrain.objectives.reduce import sequence_sum
from posttrain.objectives.shapes import require_one_shape


def centring(chosen_B: Float[Tensor, "..."], rejected_B: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """How far the two rewards of a pair are from being each other's negative, squared.

        C_b = (r(chosen_b) + r(rejected_b))^2

    Comparisons do not say what a reward of 0 means, for each prompt anew. With a small weight this does: half way
    between the two. Eisenstein et al. 2023, eq. 2 (https://arxiv.org/abs/2312.09244). Both carry the gradient. Raises
    `ValueError` for unequal shapes.

    Example:
        >>> import torch
        >>> centring(torch.tensor([2.0]), torch.tensor([1.0]))
        tensor([9.])
    """
    require_one_shape("centring", chosen_B=chosen_B, rejected_B=rejected_B)
    return (chosen_B + rejected_B).square()


def correlation(first_E: Float[Tensor, "E"], second_E: Float[Tensor, "E"]) -> Float[Tensor, ""]:
    """Pearson's correlation over a batch.

        rho(a, b) = sum_e (a_e - mean a)(b_e - mean b) / sqrt( sum_e (a_e - mean a)^2  sum_e (b_e - mean b)^2 )

    It is of the whole batch: those of its parts do not add up to it. Where one of the two does not vary there is none,
    and it is 0. Raises `ValueError` for unequal shapes.

    Example:
        >>> import torch
        >>> correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 3.0, 1.0]))
        tensor(-1.)
    """
    require_one_shape("correlation", first_E=first_E, second_E=second_E)
    a_E, b_E = first_E - first_E.mean(), second_E - second_E.mean()
    spread = a_E.square().sum() * b_E.square().sum()
    if spread == 0:
        return (a_E * b_E).sum() * 0.0
    return (a_E * b_E).sum() / spread.sqrt()


def length_apart(
    quality_E: Float[Tensor, "E"], length_head_E: Float[Tensor, "E"], tokens_E: Float[Tensor, "E"]
) -> Float[Tensor, ""]:
    """Low where one head says nothing of the length of a response and the other says all of it.

        L_L = |rho(r_Q, n)| - rho(r_L, n),   n the tokens of each response, rho over the batch

    The length loss of ODIN, Chen et al. 2024 (https://arxiv.org/abs/2402.07319): the two heads' sum learns
    what people chose, and what of that is the length goes to r_L, which is not used afterwards. Both rewards carry the
    gradient. Raises `ValueError` for unequal shapes.

    Example:
        >>> import torch
        >>> n = torch.tensor([1.0, 2.0, 3.0])
        >>> length_apart(torch.tensor([1.0, -2.0, 1.0]), n, n)  # the first is even, the second is the length itself
        tensor(-1.)
    """
    return correlation(quality_E, tokens_E).abs() - correlation(length_head_E, tokens_E)


def overlap(first_D: Float[Tensor, "D"], second_D: Float[Tensor, "D"]) -> Float[Tensor, ""]:
    """How far two rows are from being at right angles, by which ODIN keeps its heads apart (see `length_apart`).

        L_O = |w_Q . w_L| / (|w_Q| |w_L|)

    The paper has |w_Q . w_L| and keeps both rows at length 1; here the lengths are free, and divided out, or the loss
    would fall by making them short, which the correlations do not see. Raises `ValueError` for unequal shapes.

    Example:
        >>> import torch
        >>> overlap(torch.tensor([3.0, 4.0]), torch.tensor([2.0, 0.0]))
        tensor(0.6000)
    """
    require_one_shape("overlap", first_D=first_D, second_D=second_D)
    return (first_D * second_D).sum().abs() / (first_D.square().sum() * second_D.square().sum()).sqrt()


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


def step_correctness(
    logits_S: Float[Tensor, "..."], right_S: Bool[Tensor, "..."] | Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Binary cross-entropy of a process reward model at each labelled step, in nats.

        L_s = -y_s log sigma(z_s) - (1 - y_s) log(1 - sigma(z_s))

    z_s is the logit that step s is right, read at its end, and y_s whether it is. Uesato et al. 2022
    (https://arxiv.org/abs/2211.14275) and Lightman et al. 2023 (https://arxiv.org/abs/2305.20050) train so, on steps up
    to the first wrong one. y_s may lie between 0 and 1, as the soft labels of Math-Shepherd do, the shares of
    continuations that end right (Wang et al. 2023, https://arxiv.org/abs/2312.08935).

    Example:
        >>> import torch
        >>> step_correctness(torch.tensor([0.0, 2.0, 2.0]), torch.tensor([True, True, False]))
        tensor([0.6931, 0.1269, 2.1269])
    """
    require_one_shape("step_correctness", logits_S=logits_S, right_S=right_S)
    right_S = right_S.to(logits_S.dtype)
    return right_S * softplus(-logits_S) + (1 - right_S) * softplus(logits_S)


def implicit_reward_loss(
    logprobs_N: Float[Tensor, "..."],
    reference_N: Float[Tensor, "..."],
    labels_N: Float[Tensor, "..."],
    row_N: Int[Tensor, "..."],
    *,
    beta: float,
) -> Float[Tensor, "..."]:
    """The cross entropy of a response's label, its logit a language model's log-ratio; each of its tokens has it.

        L_i = -y_i log sigmoid(r_i) - (1 - y_i) log(1 - sigmoid(r_i)),   r_i = beta sum_t ( log phi(t) - log ref(t) )

    Yuan et al. 2024 (https://arxiv.org/abs/2412.01981), the form with cross entropy: each term of the sum is then a
    reward of its token. Labels are 0 to 1, the same at all tokens of a response; `row_N` says which response a token
    belongs to, from 0, and all its tokens are here. In nats. The gradient reaches `logprobs_N` alone. Raises
    `ValueError` for unequal shapes.

    Example:
        >>> import torch
        >>> said, row = torch.tensor([0.0, 0.0]), torch.tensor([0, 0])
        >>> implicit_reward_loss(said, said, torch.ones(2), row, beta=1.0)  # log 2
        tensor([0.6931, 0.6931])
    """
    columns = {"logprobs_N": logprobs_N, "reference_N": reference_N, "labels_N": labels_N, "row_N": row_N}
    require_one_shape("implicit_reward_loss", **columns)
    rows = int(row_N.max()) + 1 if len(row_N) else 0
    reward_N = sequence_sum(beta * (logprobs_N - reference_N.detach()), row_N, rows)[row_N]
    return softplus(reward_N) - labels_N.detach() * reward_N
