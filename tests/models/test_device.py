import pytest
import torch

from tacit.models.training import resolve_device


@pytest.mark.parametrize("available", [True, False])
def test_cuda(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    if available:
        assert resolve_device("cuda") == torch.device("cuda")
    else:
        with pytest.raises(ValueError, match="no CUDA device here; use --device cpu"):
            resolve_device("cuda")
