"""Writes a capture as files of other tools: each module reads the contract and writes one format."""
