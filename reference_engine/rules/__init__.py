"""Graph rules by family; the ordered table is `opgauge.reference_engine.passes`."""
