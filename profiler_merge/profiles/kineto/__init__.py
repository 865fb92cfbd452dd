"""PyTorch's profiles (Kineto, Chrome's JSON format) as the event table."""
