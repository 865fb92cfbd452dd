"""What-if: a capture to a changed capture, by rules that are pure functions over the operations of a rank."""
