"""Installs packages without code below a root: folders of metadata, as pip writes them."""

import sysconfig

__all__ = ["AWS_IMAGE", "install", "site"]


def site(root):
    """Where this Python looks for packages, below a root."""
    return root / sysconfig.get_paths()["purelib"].lstrip("/")


def install(root, name, version, *requires, metadata=None):
    """Write the metadata of a package; of torch also ``torch/version.py``, whose CUDA is that of its local version."""
    folder = site(root) / f"{name.replace('-', '_')}-{version.partition('+')[0]}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    content = ("\n".join(lines) + "\n").encode() if metadata is None else metadata
    (folder / "METADATA").write_bytes(content)
    if name == "torch":
        local = version.partition("+cu")[2]
        cuda = repr(f"{local[:-1]}.{local[-1]}") if local.isdigit() else None
        module = site(root) / "torch"
        module.mkdir(exist_ok=True)
        text = (
            f"from typing import Optional\n\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\n"
        )
        (module / "version.py").write_text(text)


#: A GPU image as AWS builds it, with this package's requirements installed.
AWS_IMAGE = (
    ("torch", "2.8.0+cu129", "nvidia-nccl-cu12==2.27.3"),
    ("nvidia-nccl-cu12", "2.27.3"),
    ("torchvision", "0.23.0", "torch==2.8.0"),
    ("torchaudio", "2.8.0", "torch==2.8.0"),
    ("torchmetrics", "1.9.0", "torch>=2.0.0"),
    ("pytorch-lightning", "2.5.5", "torch>=2.1.0", "torchmetrics>0.7.0", "packaging>=20.0"),
    ("jsonargparse", "4.49.0"),
    ("setuptools", "80.9.0"),
    ("sagemaker-training", "5.1.1"),
    ("mpi4py", "4.0.3"),
)
