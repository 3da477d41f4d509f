"""What a pipeline survives, said before it runs: classes from plans, promises from strategies."""
