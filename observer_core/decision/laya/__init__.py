"""Laya: an encoder that reads one row per question and marks each option with a `[MASK]`.

`config` and `layout` (rows) need no torch, nor does `runtime` with an ONNX graph; `model` and `checkpoint` are torch.
"""
