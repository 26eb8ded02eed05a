import pytest
import torch

from tacit.models.training import resolve_device


def test_cpu() -> None:
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["", "CPU", "cuda:1", "mps"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown device"):
        resolve_device(name)


@pytest.mark.parametrize("available", [True, False])
def test_cuda(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    if available:
        assert resolve_device("cuda") == torch.device("cuda")
    else:
        with pytest.raises(ValueError, match="no CUDA device here; use --device cpu"):
            resolve_device("cuda")
