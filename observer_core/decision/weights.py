"""What may stand in a checkpoint as a weight."""

import torch

WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""All that becomes float32 as it is; integers, complex numbers and float8 (whose scales lie elsewhere) do not."""
