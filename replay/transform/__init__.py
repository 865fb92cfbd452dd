"""Changes captures for what-if questions, by rules that are pure functions over the operations of a rank."""
