"""What judges exported cases where opgauge is not: `opgauge fixtures export` copies both files."""
