"""Kev: a causal decoder that reads the state once and answers each question in a branch that ends in a pointer.

`config`, `layout` (tokens) and `prefixes` need no torch, nor does `runtime` with an ONNX graph; the rest is torch.
"""
