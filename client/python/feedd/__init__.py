"""feedd: batches from a feedd daemon on this machine, for PyTorch, JAX, CuPy and NumPy.

DataLoader stands in for torch.utils.data.DataLoader; NumpyLoader, CupyLoader and JaxLoader give the arrays of others.
"""

from ._errors import (
    AccessError,
    ArgumentError,
    DaemonError,
    DeviceError,
    Error,
    ForkError,
    LeasesError,
    NotFoundError,
    OutOfMemoryError,
    TokenError,
    VersionError,
)
from ._lib import VERSION as __version__
from ._loader import BatchInfo, CupyLoader, DataLoader, Dataset, JaxLoader, NumpyLoader
from ._transforms import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

__all__ = [
    "AccessError", "ArgumentError", "BatchInfo", "CenterCrop", "CupyLoader", "DaemonError", "DataLoader", "Dataset",
    "DeviceError", "Error", "ForkError", "JaxLoader", "LeasesError", "NotFoundError", "NumpyLoader",
    "OutOfMemoryError", "RandomCrop", "RandomHorizontalFlip", "RandomResizedCrop", "Resize", "TokenError",
    "VersionError", "__version__",
]  # fmt: skip
