"""Tests whether an application takes longer on one file system than on another, by interleaved pairs of replays."""
