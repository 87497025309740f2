"""``clip_grad_norm_`` of the stand-in."""

from torch.sagemaker import calls  # type: ignore[import-not-found]


def clip_grad_norm_(model, max_norm, norm_type=2.0):
    calls.append(("clip_grad_norm_", max_norm))
    return model.clip_grad_norm_(max_norm, norm_type)
