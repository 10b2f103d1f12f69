import doctest

import pytest
import torch

from posttrain.objectives import shapes


def test_one_shape_passes():
    assert shapes.require_one_shape("f", a=torch.zeros(2, 3), b=torch.ones(2, 3)) is None


def test_the_message_names_the_function_every_tensor_and_its_shape():
    with pytest.raises(ValueError, match=r"^f needs tensors of one shape; got a \(3,\), b \(3, 1\), c \(3,\)"):
        shapes.require_one_shape("f", a=torch.zeros(3), b=torch.zeros(3, 1), c=torch.zeros(3))


def test_docstring_examples_run():
    results = doctest.testmod(shapes)
    assert results.failed == 0 and results.attempted > 0
