"""Kernels for CUDA devices by Triton, which comes with PyTorch's builds for them.

The same kernels serve ROCm and XPU. The modules of this package need Triton; the package itself does not.
"""
