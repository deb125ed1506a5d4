"""Two pixels of 12 bits in three bytes, dequantized: an operator and a backend that opgauge learns from outside."""
