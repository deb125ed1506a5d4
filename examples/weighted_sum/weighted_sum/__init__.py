"""example::WeightedSum, an operator that opgauge learns from outside."""
