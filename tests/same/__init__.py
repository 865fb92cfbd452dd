"""The guard of rewrites: what the product answers about recorded jobs, against what is frozen in `frozen.json`."""
