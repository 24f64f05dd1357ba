"""Tachyon: an LLM agent makes a CUDA kernel faster, round after round, under a judge that cannot be talked round."""

__version__ = "0.1.0"
